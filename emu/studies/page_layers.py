"""Layers between the data of a page and its flash cells: encryption, randomizer, check bytes.

Owns the order of the layers, the assignment of layers to the controller and the dies, and the codes
of whole pages. Does not own cipher and pseudorandom sequence (compute/), the codes of single words
(nand/codec.py), the path of a page through the layers (page_path.py) or the time and energy of the
layers (compute/pe.py, analysis/energy.py).
Source: IEEE Std 1619-2018; R. Micheloni et al., "Inside NAND Flash Memories" (2010), on randomizers
before the encoder; OptimStore (HPCA 2023) for the operations on dies.

A write encrypts, then randomizes, then encodes the data; a read reverses these operations in the
opposite order. The encoder therefore processes the same bytes that the flash cells store.
Assumptions: one key and one seed per drive; a flash page is one data unit of XTS, whose tweak is
the logical page number or the physical page number.
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
    """Cipher and randomizer of the controller.

    ``cipher``: one of CIPHERS. ``key``: key of the cipher, 64 bytes. ``tweak``: page number that
    the cipher uses as the tweak of a page, "logical" or "physical" (TWEAKS). ``randomiser``: one of
    RANDOMISERS. ``seed``: seed of the randomizer.
    """

    cipher: str = "none"
    randomiser: str = "none"
    tweak: str = "logical"
    key: bytes = b""
    seed: int = 0


class PageNumber(NamedTuple):
    """Logical and physical page number of a page."""

    logical: int
    physical: int


class Layers(NamedTuple):
    """Layers that a controller or a die applies. ``cipher``, ``randomiser``: None if the layer is
    not applied. ``tweak``: page number that the cipher uses as the tweak of a page, "logical" or
    "physical" (TWEAKS)."""

    cipher: Xts | None
    randomiser: Randomiser | None
    tweak: str

    def write(self, data: Bytes, page: PageNumber) -> Bytes:
        """Return the bytes that are to be encoded and programmed, uint8[page bytes], for the data
        of a page."""
        if self.cipher is not None:
            data = self.cipher.encrypt(data, self._unit(page))
        if self.randomiser is not None:
            data = self.randomiser(data, page.physical)
        return data

    def read(self, stored: Bytes, page: PageNumber) -> Bytes:
        """Return the data of a page, uint8[page bytes], from the decoded bytes ``stored``, by
        removing the layers."""
        if self.randomiser is not None:
            stored = self.randomiser(stored, page.physical)
        if self.cipher is not None:
            stored = self.cipher.decrypt(stored, self._unit(page))
        return stored

    def _unit(self, page: PageNumber) -> int:
        return page.logical if self.tweak == "logical" else page.physical


def layers_of(cfg: Config, coding: Coding) -> tuple[Layers, Layers]:
    """Return (layers of the controller, layers of the dies). pe.cipher and pe.randomiser select the
    layers of the dies.

    Raises InputError if the dies have a layer that the controller does not have. In this case, the
    controller could not read the pages programmed by the dies.
    """
    for key, on_die, of_controller, what in (
        ("pe.cipher", cfg.pe.cipher, coding.cipher, "cipher"),
        ("pe.randomiser", cfg.pe.randomiser, coding.randomiser, "randomizer"),
    ):
        if on_die == "die" and of_controller == "none":
            raise InputError(
                f'{key} = "die" while the controller has no {what}: the controller could not read '
                f'the pages that the dies program; use {key} = "none", or enable the '
                f"controller's {what}"
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
    """Interface of an error-correcting code that is applied to every word (codeword) of a page."""

    def encode(self, stored: Bytes) -> Bytes:
        """Return the check bytes of a page, uint8[n]. They are stored at the start of the page's
        spare area."""

    def decode(self, read: Bytes, spare: Bytes, wrong: Bytes) -> tuple[Bytes, int]:
        """Return (corrected bytes, number of words that could not be decoded).

        ``read``: bytes as read from the flash cells, uint8[page bytes]. ``spare``: the spare area.
        ``wrong``: mask of the bit errors in ``read``, uint8[page bytes], which only the capability
        model may use.
        """


class Capability:
    """Model of an error-correcting code by its capability, without check bytes: if a word of
    ``word`` bytes has at most ``limit`` bit errors, the model corrects all of them."""

    def __init__(self, word: int, limit: int) -> None:
        self._word, self._limit = word, limit

    def encode(self, stored: Bytes) -> Bytes:
        """Return no check bytes, uint8[0], because the capability model has none."""
        return np.zeros(0, np.uint8)

    def decode(self, read: Bytes, spare: Bytes, wrong: Bytes) -> tuple[Bytes, int]:
        """Correct the words in which ``wrong`` has at most ``limit`` bit errors. Arguments and
        results are those of :meth:`PageCode.decode`."""
        left = wrong.copy()
        clear_correctable(left, self._word, self._limit)
        failed = int(left.reshape(-1, self._word).any(1).sum())
        return read ^ wrong ^ left, failed


class Words:
    """Error-correcting code of a page that applies an implemented code (BCH or LDPC) to each code
    word. The decoder uses hard decision."""

    def __init__(self, code: WordCode) -> None:
        self._code = code

    def encode(self, stored: Bytes) -> Bytes:
        """Return the check bytes of all words of a page, uint8[n]."""
        return self._code.encode(stored.reshape(-1, self._code.data_bytes)).reshape(-1)

    def decode(self, read: Bytes, spare: Bytes, wrong: Bytes) -> tuple[Bytes, int]:
        """Decode every word of a page with its check bytes from ``spare``; ``wrong`` is not used.
        Arguments and results are those of :meth:`PageCode.decode`."""
        data = read.reshape(-1, self._code.data_bytes)
        size = self._code.check_bytes
        found = self._code.decode(data, spare[: len(data) * size].reshape(-1, size))
        return found.data.reshape(-1), int((~found.good).sum())


def controller_code(cfg: Config) -> PageCode:
    """Return the error-correcting code of the controller's encoder and decoder, which ecc.code
    selects."""
    if cfg.ecc.code == "capability":
        return Capability(cfg.ecc.codeword_bytes, cfg.ecc.correctable_bits)
    return Words(codec.controller_code(cfg))


def die_code(cfg: Config) -> PageCode:
    """Return the code of a die's ECC engine, which corrects pe.ecc_correctable_bits bit errors in a
    word of pe.ecc_codeword bytes. It is a BCH code if ecc.code is bch or ldpc, and the capability
    model if ecc.code is capability."""
    if cfg.ecc.code == "capability":
        return Capability(cfg.pe.ecc_codeword_bytes, cfg.pe.ecc_correctable_bits)
    return Words(codec.die_code(cfg))
