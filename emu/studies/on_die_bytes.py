"""Effect of an update on the die on encrypted and randomized pages: `ondie study on-die-bytes`.

Owns the cells of the matrix, the model's prediction for each, and the result computed with bytes.
Does not own the layers (page_layers.py), the way of pages through them (page_path.py) or the tables
(on_die_bytes_tables.py).
Source: this project. The faults are those of docs/on-die-protection.md.

Every cell writes w, m and v of one stripe through the controller, updates them on a die into other
physical pages, and reads them through the controller. The reference is the same update of the same
values without layers. Then bits of the new pages' cells are made wrong, and the pages are read
again; and bits of the old pages' cells, and the pages are updated again. Nothing is drawn by the
engine: times and energy of the same keys are those of `ondie ablation`.
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
"""Places of a layer: nowhere, in the controller alone, or in the controller and the dies."""
AT_REGISTERS = "nan_comparator at the registers"
PROTECTIONS = ("none", "nan_comparator", AT_REGISTERS, "on_die_ecc", "controller_ecc")
"""Values of pe.protection; the comparator has two places (page_path.PagePath)."""
CODES = ("capability", "bch", "ldpc")
SET_HERE = ("pe.cipher", "pe.randomiser", "pe.protection", "ecc.code")
"""Configuration keys that the matrix sets for each case, so that options may not set them."""
VECTORS = ("w", "m", "v")
VALUE_BYTES = 4
SOURCES, TARGETS, AGAIN, CONVENTIONAL = 10, 120, 160, 200
"""First physical pages of the states before the update, after it and after an update of wrong bits,
and the page of other data."""
TOP_BYTE, TOP_BIT = 2, 0x80
"""Byte and bit of a value of FP32 that are made wrong: the exponent's least significant bit."""
HYPER = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01}
STEP = 10


@dataclass(frozen=True)
class Case:
    """A cell of the matrix: the places of the cipher and the randomizer (PLACES), a protection of
    PROTECTIONS, and ecc.code."""

    cipher: str
    randomiser: str
    protection: str
    code: str


@dataclass(frozen=True)
class Answers:
    """State of the pages after the update, as the model predicts it or as computed with bytes."""

    right: bool
    """True if all values of w, m and v that the controller reads are those of the reference."""
    after_wrong_bits: int | None
    """Wrong values that the controller reads after bits of the new pages were made wrong; None: not
    right before."""
    after_wrong_sources: int | None
    """Wrong values that it reads after an update of pages with as many wrong bits; None: not right
    before."""
    decoder_fails: bool | None
    """True if the controller's decoder fails on every new page when it ignores the page's record;
    None: there is no code with bytes."""
    conventional_right: bool
    """True if the controller reads correct data from a page with as many wrong bits that only the
    controller has written."""


@dataclass(frozen=True)
class Cell:
    """A case with its answers."""

    case: Case
    predicted: Answers
    found: Answers
    wrong_share: float
    """Share of values of w, m and v that are wrong without wrong bits."""
    wrong_bits: int
    """Number of bits that were inverted in the pages of w, m and v."""

    @property
    def agrees(self) -> bool:
        """Return True if the computed bytes agree with the model's prediction."""
        return self.predicted == self.found

    def data(self) -> dict[str, Any]:
        """Return the cell as a dictionary for --json."""
        return {
            **asdict(self.case),
            "predicted": asdict(self.predicted),
            "found": asdict(self.found),
            "wrong_share": self.wrong_share,
            "wrong_bits": self.wrong_bits,
            "agrees": self.agrees,
        }


def cases(codes: Sequence[str]) -> list[Case]:
    """Return all cases with the codes ``codes``, the fastest index last."""
    return [Case(*each) for each in product(PLACES, PLACES, PROTECTIONS, codes)]


def configuration(cfg: Config, case: Case) -> Config:
    """Return the drive of a case. Raises InputError if a code does not fit the drive."""
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
    """Return the controller's part of a case. ``seed`` determines the key and the randomizer."""
    return Coding(
        "none" if case.cipher == NONE else "xts",
        "none" if case.randomiser == NONE else "prbs",
        tweak,
        np.random.default_rng([seed, 1]).bytes(64),
        seed,
    )


# --- what the model predicts


def wrong_bits_of_page(cfg: Config) -> int:
    """Return the bits that are made wrong in a page: in one code word, as many as both codes
    correct. Each is in a block of the cipher in which no other bit of w, m or v is wrong."""
    blocks = blocks_of_word(cfg) // len(VECTORS)
    return min(cfg.pe.ecc_correctable_bits, cfg.ecc.correctable_bits, blocks)


def blocks_of_word(cfg: Config) -> int:
    """Return the blocks of the cipher in the smaller code word."""
    return min(cfg.pe.ecc_codeword_bytes, cfg.ecc.codeword_bytes) // BLOCK_BYTES


def predicted(cfg: Config, case: Case) -> Answers:
    """Return the prediction of the model for a case.

    The dies must apply every layer that the controller applies: they compute with the bytes that
    they sense. A comparator at the registers changes stored bytes that are not values. Pages
    without check bytes are read undecoded, so that wrong bits stay; a wrong bit of a block of the
    cipher spoils all values of the block. A wrong value of w spoils itself in the update, one of m
    or v also w. The controller's code has encoded the new pages only with controller_ecc.
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

    The values are large enough, and gradients agree enough with their m, that a doubled or halved
    value of w, m or v always changes the result of the update.
    """
    rng = np.random.default_rng([seed, 2])
    sign = rng.choice(np.array([-1, 1], np.float32), (2, values))
    drawn = 0.25 + abs(rng.standard_normal((4, values))).astype(np.float32)
    w, m, v, g = drawn * np.array([2e-2, 1e-3, 1e-3, 1e-3], np.float32)[:, None]
    return {"w": w * sign[0], "m": m * sign[1], "v": v * v, "g": g * sign[1]}


def masks_of(cfg: Config, rng: np.random.Generator) -> list[Bytes]:
    """Return masks of wrong bits of pages of w, m and v, uint8[page bytes] each: in each a bit of
    the exponent of values in different blocks of the cipher, all in the first code word."""
    bits, n = wrong_bits_of_page(cfg), len(VECTORS)
    masks = np.zeros((n, cfg.flash.page_bytes), np.uint8)
    chosen = rng.permutation(blocks_of_word(cfg))[: n * bits].reshape(n, bits)
    value = rng.integers(0, BLOCK_BYTES // VALUE_BYTES, (n, bits))
    places = BLOCK_BYTES * chosen + VALUE_BYTES * value + TOP_BYTE
    masks[np.arange(n)[:, None], places] = TOP_BIT
    return list(masks)


def wrong_values(pages: Sequence[Bytes], reference: Sequence[Bytes]) -> int:
    """Return the number of values of four bytes that differ."""
    return sum(
        int((a.view(np.uint32) != b.view(np.uint32)).sum())
        for a, b in zip(pages, reference, strict=True)
    )


def pages_of_states(first: int) -> list[PageNumber]:
    """Return the pages of w, m and v, whose physical numbers begin at ``first``."""
    return [PageNumber(i, first + i) for i in range(len(VECTORS))]


def ran(cfg: Config, case: Case, tweak: str, seed: int) -> Cell:
    """Run a case on bytes. ``cfg``: the drive; the case sets keys of it."""
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
    """Raise InputError, before anything runs, for options with which the matrix cannot be
    computed."""
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key in SET_HERE:
            raise InputError(f"--set {setting}: the matrix has all values of {key}; leave it out")
    if cfg.pe.kind == "none":
        raise InputError(
            f'{cfg.system.name}: pe.kind = "none": the drive has no processing elements on its '
            "dies; use a drive with them, such as --device optimstore-r1"
        )
    if tweak not in TWEAKS:
        raise InputError(f"tweak {tweak!r}; use one of {', '.join(TWEAKS)}")
    unknown = [code for code in codes if code not in CODES]
    if unknown or not codes or len(set(codes)) < len(codes):
        raise InputError(
            f"--codes {','.join(codes)}: use each of {', '.join(CODES)} at most once, at least one"
        )
    if not 0 <= seed < 1 << 64:
        raise InputError(f"--seed {seed}: must be from 0 to 2**64 - 1")
    for case in cases(codes):
        PagePath(configuration(cfg, case), coding(case, tweak, 0))


def run_study(
    cfg: Config, codes: Sequence[str] = CODES, tweak: str = "logical", seed: int = 1,
    progress: Progress = None,
) -> Iterator[Cell]:  # fmt: skip
    """Yield the cells of the matrix, one after the other.

    ``codes``: values of ecc.code. ``tweak``: of TWEAKS. ``seed``: of values, wrong bits, key and
    randomizer, 0 or more.
    """
    wanted = cases(codes)
    for i, case in enumerate(wanted):
        if progress is not None:
            progress(f"{case.cipher}, {case.randomiser}, {case.protection}", i / len(wanted))
        yield ran(cfg, case, tweak, seed)
