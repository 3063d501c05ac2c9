"""Layers between the bytes of a page and its cells: encryption, randomizer, check bytes.

Owns the order of the layers, which of them the controller and the dies apply, and codes over whole
pages. Does not own cipher and sequence (compute/), the codes of words (nand/codec.py), the path of
a page through them (page_path.py) or their time and energy (compute/pe.py, analysis/energy.py).
Source: IEEE Std 1619-2018; R. Micheloni et al., "Inside NAND Flash Memories" (2010), on randomizers
before the encoder; OptimStore (HPCA 2023) for the operations on dies.

A write encrypts, randomizes and encodes; a read does the opposite in the opposite order. Encoded
are therefore the bytes that the cells hold. Assumptions: one key and one seed per drive; a flash
page is one data unit of XTS, whose tweak is the logical page or the physical page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ondie.emu.compute.randomiser import Randomiser
from ondie.emu.compute.xts import Xts
from ondie.emu.config.config import Config
from ondie.emu.nand import codec
from ondie.emu.nand.codec import WordCode
from ondie.emu.nand.pe_protection import clear_correctable
from ondie.emu.units import InputError

Bytes = NDArray[np.uint8]
CIPHERS, RANDOMISERS, TWEAKS = ("none", "xts"), ("none", "prbs"), ("logical", "physical")


@dataclass(frozen=True)
class Coding:
    """Transformation of the bytes of pages in the controller: one of CIPHERS with ``key`` (64
    bytes) and a tweak of TWEAKS, and one of RANDOMISERS with ``seed``."""

    cipher: str = "none"
    randomiser: str = "none"
    tweak: str = "logical"
    key: bytes = b""
    seed: int = 0


class PageNumber(NamedTuple):
    """The logical and the physical number of a page."""

    logical: int
    physical: int


class Layers(NamedTuple):
    """The layers that a controller or a die applies; None: it does not apply the layer."""

    cipher: Xts | None
    randomiser: Randomiser | None
    tweak: str

    def write(self, data: Bytes, page: PageNumber) -> Bytes:
        """Return the bytes that are encoded and programmed, uint8[page bytes]."""
        if self.cipher is not None:
            data = self.cipher.encrypt(data, self._unit(page))
        if self.randomiser is not None:
            data = self.randomiser(data, page.physical)
        return data

    def read(self, stored: Bytes, page: PageNumber) -> Bytes:
        """Return the data of a page from its decoded bytes, uint8[page bytes]."""
        if self.randomiser is not None:
            stored = self.randomiser(stored, page.physical)
        if self.cipher is not None:
            stored = self.cipher.decrypt(stored, self._unit(page))
        return stored

    def _unit(self, page: PageNumber) -> int:
        return page.logical if self.tweak == "logical" else page.physical


def layers_of(cfg: Config, coding: Coding) -> tuple[Layers, Layers]:
    """Return the layers of the controller and those of the dies (pe.cipher, pe.randomiser).

    Raises InputError if the dies have a layer that the controller does not have: there is no key,
    or seed, that it could give them, and it could not read what they program.
    """
    for key, on_die, of_controller, what in (
        ("pe.cipher", cfg.pe.cipher, coding.cipher, "cipher"),
        ("pe.randomiser", cfg.pe.randomiser, coding.randomiser, "randomizer"),
    ):
        if on_die == "die" and of_controller == "none":
            raise InputError(
                f'{key} = "die" while the controller has no {what}: the controller could not read '
                f'what the dies program; use {key} = "none", or give the controller its {what}'
            )
    cipher = Xts(coding.key) if coding.cipher == "xts" else None
    randomiser = Randomiser(coding.seed) if coding.randomiser == "prbs" else None
    return (
        Layers(cipher, randomiser, coding.tweak),
        Layers(
            cipher if cfg.pe.cipher == "die" else None,
            randomiser if cfg.pe.randomiser == "die" else None,
            coding.tweak,
        ),
    )


# --- check bytes


class PageCode(Protocol):
    """A code over the words of a page."""

    def encode(self, stored: Bytes) -> Bytes:
        """Return the check bytes of a page, uint8[n], at the start of its spare area."""

    def decode(self, read: Bytes, spare: Bytes, wrong: Bytes) -> tuple[Bytes, int]:
        """Return the corrected bytes and the number of words that could not be decoded.

        ``read``: bytes of the cells, uint8[page bytes]. ``spare``: the spare area. ``wrong``: mask
        of the wrong bits in ``read``, which only a code without bytes may use.
        """


class Capability:
    """The capability model: no check bytes, up to ``limit`` wrong bits of a word are corrected."""

    def __init__(self, word: int, limit: int) -> None:
        self._word, self._limit = word, limit

    def encode(self, stored: Bytes) -> Bytes:
        """Implement the method of PageCode."""
        return np.zeros(0, np.uint8)

    def decode(self, read: Bytes, spare: Bytes, wrong: Bytes) -> tuple[Bytes, int]:
        """Implement the method of PageCode."""
        left = wrong.copy()
        clear_correctable(left, self._word, self._limit)
        failed = int(left.reshape(-1, self._word).any(1).sum())
        return read ^ wrong ^ left, failed


class Words:
    """A real code on the words of a page, with hard decision."""

    def __init__(self, code: WordCode) -> None:
        self._code = code

    def encode(self, stored: Bytes) -> Bytes:
        """Implement the method of PageCode."""
        return self._code.encode(stored.reshape(-1, self._code.data_bytes)).reshape(-1)

    def decode(self, read: Bytes, spare: Bytes, wrong: Bytes) -> tuple[Bytes, int]:
        """Implement the method of PageCode."""
        data = read.reshape(-1, self._code.data_bytes)
        size = self._code.check_bytes
        found = self._code.decode(data, spare[: len(data) * size].reshape(-1, size))
        return found.data.reshape(-1), int((~found.good).sum())


def controller_code(cfg: Config) -> PageCode:
    """Return the code of the controller's encoder and decoder (ecc.code)."""
    if cfg.ecc.code == "capability":
        return Capability(cfg.ecc.codeword_bytes, cfg.ecc.correctable_bits)
    return Words(codec.controller_code(cfg))


def die_code(cfg: Config) -> PageCode:
    """Return the code of the engine on a die: pe.ecc_correctable_bits in pe.ecc_codeword, as BCH
    code where ecc.code is a real code, else as capability."""
    if cfg.ecc.code == "capability":
        return Capability(cfg.pe.ecc_codeword_bytes, cfg.pe.ecc_correctable_bits)
    return Words(codec.die_code(cfg))
