"""Effect of on-die updates on encrypted and randomized pages: `ondie study on-die-bytes`.

Owns the cases of the study, the prediction of the model for each case, and the result computed
from page data. Does not own the layers (page_layers.py), the path of pages through the layers
(page_path.py) or the tables (on_die_bytes_tables.py).
Source: this project. The faults are those of docs/on-die-protection.md.

For every case, the weights w and the moments m and v of one stripe are written through the
controller, updated on a die into other physical pages, and read through the controller. The
reference is the same update of the same values without layers. Then bit errors are tested in two
ways. First, bits of the new pages are inverted, and the new pages are read again. Second, bits of
the old pages are inverted, and the update is repeated. The engine is not used. `ondie ablation`
simulates the time and energy of updates with the same configuration keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from ondie.emu.analysis.row import Progress
from ondie.emu.compute.aes import BLOCK_BYTES
from ondie.emu.config.config import Config
from ondie.emu.nand.pe_protection import WITHOUT_ECC
from ondie.emu.studies.page_layers import TWEAKS, Bytes, Coding, PageNumber
from ondie.emu.studies.page_path import PagePath
from ondie.emu.units import InputError
from ondie.kernels import get

NONE, CONTROLLER, DIE = PLACES = ("none", "controller", "die")
"""Use of a layer (cipher or randomizer) in a case: not used, used in the controller only, or used
in the controller and on the dies."""
AT_REGISTERS = "nan_comparator at the registers"
PROTECTIONS = ("none", "nan_comparator", AT_REGISTERS, "on_die_ecc", "controller_ecc")
"""Protections that the cases combine with the layers: the values of pe.protection, and
AT_REGISTERS, which is nan_comparator with the comparator at the page registers."""
CODES = ("capability", "bch", "ldpc")
SET_HERE = ("pe.cipher", "pe.randomiser", "pe.protection", "ecc.code")
"""Configuration keys that the study sets for each case. The options of the user must not set these
keys."""
VECTORS = ("w", "m", "v")
VALUE_BYTES = 4
SOURCES, TARGETS, AGAIN, CONVENTIONAL = 10, 120, 160, 200
"""First physical pages of the states before the update, of the updated states, and of the states
updated from pages with bit errors; physical page of the conventional data."""
TOP_BYTE, TOP_BIT = 2, 0x80
"""Index of a byte in a little-endian FP32 value, and mask of the bit in this byte that the study
inverts. This bit is the least significant bit of the exponent."""
HYPER = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01}
STEP = 10


@dataclass(frozen=True)
class Case:
    """A case of the study: the use of the cipher and of the randomizer (one of PLACES each), a
    protection (one of PROTECTIONS), and a value of ecc.code."""

    cipher: str
    randomiser: str
    protection: str
    code: str


@dataclass(frozen=True)
class Answers:
    """Results of a case: the state of the pages after the update, either predicted by the model or
    computed from page data."""

    right: bool
    """True if all values of w, m and v that the controller reads equal those of the reference."""
    after_wrong_bits: int | None
    """Number of incorrect values of w, m and v that the controller reads after bits of the new
    pages were inverted; None if ``right`` is False."""
    after_wrong_sources: int | None
    """Number of incorrect values of w, m and v that the controller reads after bits of the old
    pages were inverted and the update was repeated from these pages; None if ``right`` is False.
    The positions of the inverted bits are those of ``after_wrong_bits``."""
    decoder_fails: bool | None
    """True if the controller's decoder fails on every new page when it ignores the encoder mark
    (which encoder wrote the check bytes). None for the capability model, because it has no check
    bytes."""
    conventional_right: bool
    """True if the controller reads correct data from a conventional page (outside the reservoir),
    which the dies have not updated. The same bits of this page were inverted as in the updated page
    of w."""


@dataclass(frozen=True)
class Cell:
    """Settings of a case of the study, its results predicted by the model, and its results computed
    from page data."""

    case: Case
    predicted: Answers
    found: Answers
    wrong_share: float
    """Fraction of the values of w, m and v that are incorrect although no bits were inverted."""
    wrong_bits: int
    """Number of bits that were inverted in the pages of w, m and v together."""

    @property
    def agrees(self) -> bool:
        """True if the computed results equal the predicted results."""
        return self.predicted == self.found

    def data(self) -> dict[str, Any]:
        """Return the case, its predicted results and its computed results as a dictionary for
        --json."""
        return {
            **asdict(self.case),
            "predicted": asdict(self.predicted),
            "found": asdict(self.found),
            "wrong_share": self.wrong_share,
            "wrong_bits": self.wrong_bits,
            "agrees": self.agrees,
        }


def cases(codes: Sequence[str]) -> list[Case]:
    """Return all cases with the given ``codes`` (values of ecc.code). The code varies fastest."""
    return [Case(*each) for each in product(PLACES, PLACES, PROTECTIONS, codes)]


def configuration(cfg: Config, case: Case) -> Config:
    """Return the configuration of the drive for a case. Raises InputError if this configuration is
    invalid, for example because the check bytes of a code do not fit into the spare area of a
    page."""
    protection = "nan_comparator" if case.protection == AT_REGISTERS else case.protection
    return cfg.replace(
        {
            "pe.cipher": DIE if case.cipher == DIE else NONE,
            "pe.randomiser": DIE if case.randomiser == DIE else NONE,
            "pe.protection": protection,
            "ecc.code": case.code,
        }
    )


def coding(case: Case, tweak: str, seed: int) -> Coding:
    """Return the controller's cipher and randomizer for a case. ``seed`` determines the key and the
    state of the randomizer."""
    return Coding(
        "none" if case.cipher == NONE else "xts",
        "none" if case.randomiser == NONE else "prbs",
        tweak,
        np.random.default_rng([seed, 1]).bytes(64),
        seed,
    )


# --- what the model predicts


def wrong_bits_of_page(cfg: Config) -> int:
    """Return the number of bits that are inverted in a page. All of these bits are in one code
    word, and both the code of the dies and that of the controller can correct them. Each bit is in
    a separate cipher block. The pages of w, m and v use different blocks."""
    blocks = blocks_of_word(cfg) // len(VECTORS)
    return min(cfg.pe.ecc_correctable_bits, cfg.ecc.correctable_bits, blocks)


def blocks_of_word(cfg: Config) -> int:
    """Return the number of cipher blocks in a code word of the dies' ECC or of the controller's
    ECC, whichever is smaller."""
    return min(cfg.pe.ecc_codeword_bytes, cfg.ecc.codeword_bytes) // BLOCK_BYTES


def predicted(cfg: Config, case: Case) -> Answers:
    """Return the prediction of the model for a case.

    The dies compute with the stored data. The result is therefore correct only if the dies apply
    every layer (cipher or randomizer) that the controller applies. A NaN comparator at the page
    registers compares the stored data. If a layer is used, this data does not consist of FP32
    values, so the comparator changes valid data. Pages without check bytes are read without
    decoding, so that bit errors remain. A bit error in a cipher block corrupts all values of the
    block. In the update, an incorrect value of w makes only the new w incorrect. An incorrect value
    of m or v makes its new value and the new w incorrect. The new pages have check bytes of the
    controller's code only with controller_ecc.
    """
    right = CONTROLLER not in (case.cipher, case.randomiser)
    if case.protection == AT_REGISTERS:
        right = case.cipher == case.randomiser == NONE
    after = sources = None
    if right:
        spoiled = BLOCK_BYTES // VALUE_BYTES if case.cipher == DIE else 1
        bypass = cfg.pe.protection in WITHOUT_ECC
        values = wrong_bits_of_page(cfg) * spoiled if bypass else 0
        after, sources = len(VECTORS) * values, (1 + 2 + 2) * values
    fails = None if case.code == "capability" else case.protection != "controller_ecc"
    return Answers(right, after, sources, fails, True)


# --- what the bytes say


def initial_values(values: int, seed: int) -> dict[str, np.ndarray]:
    """Return w, m, v and a gradient, float32[values] each.

    The magnitudes of the values and the signs of the gradient are chosen so that a doubled or
    halved value of w, m or v always changes the result of the update.
    """
    rng = np.random.default_rng([seed, 2])
    sign = rng.choice(np.array([-1, 1], np.float32), (2, values))
    drawn = 0.25 + abs(rng.standard_normal((4, values))).astype(np.float32)
    w, m, v, g = drawn * np.array([2e-2, 1e-3, 1e-3, 1e-3], np.float32)[:, None]
    return {"w": w * sign[0], "m": m * sign[1], "v": v * v, "g": g * sign[1]}


def masks_of(cfg: Config, rng: np.random.Generator) -> list[Bytes]:
    """Return one mask of bit errors, uint8[page bytes], for each page of w, m and v. Each mask
    inverts an exponent bit of several values, which are in different cipher blocks of the first
    code word."""
    bits, n = wrong_bits_of_page(cfg), len(VECTORS)
    masks = np.zeros((n, cfg.flash.page_bytes), np.uint8)
    chosen = rng.permutation(blocks_of_word(cfg))[: n * bits].reshape(n, bits)
    value = rng.integers(0, BLOCK_BYTES // VALUE_BYTES, (n, bits))
    places = BLOCK_BYTES * chosen + VALUE_BYTES * value + TOP_BYTE
    masks[np.arange(n)[:, None], places] = TOP_BIT
    return list(masks)


def wrong_values(pages: Sequence[Bytes], reference: Sequence[Bytes]) -> int:
    """Return the number of values of four bytes that differ between ``pages`` and ``reference``."""
    return sum(
        int((a.view(np.uint32) != b.view(np.uint32)).sum())
        for a, b in zip(pages, reference, strict=True)
    )


def pages_of_states(first: int) -> list[PageNumber]:
    """Return the pages of w, m and v, with consecutive physical page numbers that start at
    ``first``."""
    return [PageNumber(i, first + i) for i in range(len(VECTORS))]


def ran(cfg: Config, case: Case, tweak: str, seed: int) -> Cell:
    """Return a case with its predicted results and with the results computed from page data.
    ``cfg``: configuration of the drive, in which the case sets the keys of SET_HERE. ``tweak``: one
    of TWEAKS. ``seed``: seed of the values, bit errors, key and randomizer."""
    own = configuration(cfg, case)
    drive = PagePath(own, coding(case, tweak, seed), case.protection == AT_REGISTERS)
    start = initial_values(own.flash.page_bytes // VALUE_BYTES, seed)
    kernel = get("adamw_on_die")
    coefficients = kernel.coefficients(HYPER, step=STEP)

    def change(pages: list[Bytes]) -> None:
        w, m, v = (page.view(np.float32) for page in pages)
        with np.errstate(all="ignore"):  # bytes that are no values
            kernel(w, start["g"], (m, v), coefficients)

    initial = [start[name].view(np.uint8) for name in VECTORS]
    reference = [page.copy() for page in initial]
    change(reference)

    def wrong_on(pages: list[PageNumber]) -> int:
        return wrong_values([drive.read(page) for page in pages], reference)

    sources, targets, again = map(pages_of_states, (SOURCES, TARGETS, AGAIN))
    for page, data in zip(sources, initial, strict=True):
        drive.write(page, data)
    drive.update(sources, targets, change)
    wrong, after, after_sources, fails = wrong_on(targets), None, None, None
    if case.code != "capability":
        fails = all(drive.failed_words(page) > 0 for page in targets)
    masks = masks_of(own, np.random.default_rng([seed, 3]))
    for page, mask in zip([*targets, *sources], 2 * masks, strict=True):
        drive.hit(page, mask)
    if not wrong:
        after = wrong_on(targets)
        drive.update(sources, again, change)
        after_sources = wrong_on(again)
    other = PageNumber(CONVENTIONAL, CONVENTIONAL)
    drive.write(other, initial[0], conventional=True)
    drive.hit(other, masks[0])
    kept = bool((drive.read(other, conventional=True) == initial[0]).all())
    found = Answers(not wrong, after, after_sources, fails, kept)
    share = wrong / (len(VECTORS) * start["w"].size)
    count = int(np.bitwise_count(np.stack(masks)).sum())
    return Cell(case, predicted(own, case), found, share, count)


def check_options(
    cfg: Config, settings: Sequence[str], codes: Sequence[str], tweak: str, seed: int
) -> None:
    """Raise InputError if the study cannot run with the given options."""
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key in SET_HERE:
            raise InputError(f"--set {setting}: the study varies {key}; remove this option")
    if cfg.pe.kind == "none":
        raise InputError(
            f'{cfg.system.name}: pe.kind = "none": the drive has no processing elements on its '
            "dies; use a drive that has them, such as --device optimstore-r1"
        )
    if tweak not in TWEAKS:
        raise InputError(f"tweak = {tweak!r}: must be one of {', '.join(TWEAKS)}")
    unknown = [code for code in codes if code not in CODES]
    if unknown or not codes or len(set(codes)) < len(codes):
        raise InputError(
            f"--codes {','.join(codes)}: use one or more of {', '.join(CODES)}, each at most once"
        )
    if not 0 <= seed < 1 << 64:
        raise InputError(f"--seed {seed}: must be from 0 to 2**64 - 1")
    for case in cases(codes):
        PagePath(configuration(cfg, case), coding(case, tweak, 0))


def run_study(
    cfg: Config, codes: Sequence[str] = CODES, tweak: str = "logical", seed: int = 1,
    progress: Progress = None,
) -> Iterator[Cell]:  # fmt: skip
    """Compute and yield the results of the cases of the study, one after the other.

    ``codes``: values of ecc.code. ``tweak``: one of TWEAKS. ``seed``: seed of the optimizer values,
    the bit errors, the key and the randomizer, 0 or more.
    """
    wanted = cases(codes)
    for i, case in enumerate(wanted):
        if progress is not None:
            progress(f"{case.cipher}, {case.randomiser}, {case.protection}", i / len(wanted))
        yield ran(cfg, case, tweak, seed)
