"""Code words of implemented error-correcting codes: number of check bytes, and the check that they
fit the spare area.

Owns this arithmetic and its rules. Does not own the codes (kernels/bch_code.py and
kernels/ldpc_code.py) or their use by a drive (nand/codec.py).
Source: Bose and Ray-Chaudhuri 1960, Hocquenghem 1959 (a BCH code has at most m t bits of parity).

The codes are not imported here, because their modules load the compiler. A test compares the codes
with this arithmetic.
"""

from __future__ import annotations

from ondie.emu.config.rules.conditions import Condition, equal, only_if, other_than, requires
from ondie.emu.config.rules.rule import Rule, mapping_unit
from ondie.emu.config.schema.tree import Tree
from ondie.emu.units import KINDS, exact

CRC_BYTES = 4
"""Number of bytes of the CRC-32C inside each code word."""
BCH_DEGREES = range(10, 16)
MOST_BCH_ERRORS = 100
LDPC_ROWS = 4
CIRCULANTS = (64, 128, 256, 512, 1024, 2048, 4096)
MOST_LDPC_BYTES = 1 << 16
SOFT_READS = (0, 2)
"""Allowed numbers of additional reads for soft decision: none, or two (one on either side of the
reference voltage).
"""


def spare_of_word(config: Tree) -> int:
    """Return the number of bytes of the spare area that are available to one code word."""
    words = config.flash.page_bytes // config.ecc.codeword_bytes
    return config.flash.spare_bytes // max(words, 1)


def bch_check_bytes(m: int, t: int) -> int:
    """Return an upper bound on the number of check bytes, including the CRC, of a BCH code of
    degree ``m`` that corrects ``t`` bit errors. The code has at most m t parity bits."""
    return -(-m * t // 8) + CRC_BYTES


def bch_degree(word_bytes: int, t: int) -> int | None:
    """Return the smallest degree m in BCH_DEGREES of a BCH code that corrects ``t`` bit errors in
    ``word_bytes`` of data, or None if no such code exists."""
    for m in BCH_DEGREES:
        if 8 * (word_bytes + bch_check_bytes(m, t)) < 1 << m:
            return m
    return None


def _bch_errors_that_fit(key: str, word_bytes: int, words: int, room: int) -> str:
    """Return a phrase that states the largest value of ``key``, a number of correctable bit errors,
    for which the check bytes of BCH codes fit ``room`` bytes. If no code fits, the phrase states
    this. ``words``: number of code words that share these bytes. ``word_bytes``: data bytes of a
    code word."""
    fits = [
        t
        for t in range(1, MOST_BCH_ERRORS + 1)
        if (m := bch_degree(word_bytes, t)) and words * bch_check_bytes(m, t) <= room
    ]
    return f"{key} up to {fits[-1]} fit" if fits else "no code fits"


def ldpc_check_bytes(circulant: int) -> int:
    """Return the number of check bytes of the LDPC code with circulants of ``circulant`` bits,
    including the CRC."""
    return CRC_BYTES + LDPC_ROWS * circulant // 8


def ldpc_circulant(config: Tree) -> int | None:
    """Return the size in bits of the largest LDPC circulant whose check bytes fit the spare area,
    or None if none fits."""
    room = spare_of_word(config)
    return max((z for z in CIRCULANTS if ldpc_check_bytes(z) <= room), default=None)


def _die_code_fits(config: Tree) -> bool:
    pe, flash = config.pe, config.flash
    m = bch_degree(pe.ecc_codeword_bytes, pe.ecc_correctable_bits)
    if m is None or pe.ecc_correctable_bits > MOST_BCH_ERRORS:
        return False
    words = flash.page_bytes // pe.ecc_codeword_bytes
    return words * bch_check_bytes(m, pe.ecc_correctable_bits) <= flash.spare_bytes


def _size(count: int) -> str:
    return exact(count, KINDS["bytes"])


def _bch_fits(config: Tree) -> bool:
    ecc = config.ecc
    m = bch_degree(ecc.codeword_bytes, ecc.correctable_bits)
    return m is None or bch_check_bytes(m, ecc.correctable_bits) <= spare_of_word(config)


def _most_bch_errors(config: Tree) -> str:
    """Return the error text for a BCH code whose check bytes do not fit the spare area."""
    word, room = config.ecc.codeword_bytes, spare_of_word(config)
    needed = bch_degree(word, config.ecc.correctable_bits)
    assert needed is not None
    size = bch_check_bytes(needed, config.ecc.correctable_bits)
    return (
        f"a code word needs {size} check bytes, but has {room} bytes of the spare area; "
        + _bch_errors_that_fit("ecc.correctable_bits", word, 1, room)
    )


def _no_bch(config: Tree) -> str:
    """Return the error text for a BCH code that does not exist."""
    t = config.ecc.correctable_bits
    sizes = (1 << power for power in range(16, 5, -1))
    largest = next((size for size in sizes if bch_degree(size, t) is not None), None)
    if t <= MOST_BCH_ERRORS and largest is not None:
        return (
            "no BCH code up to m = 15 has such long code words; ecc.codeword = "
            f"{_size(largest)} fits"
        )
    return (
        f"a BCH code corrects at most {MOST_BCH_ERRORS} bit errors, in code words below 4 KiB; "
        "reduce ecc.correctable_bits"
    )


def _ldpc_room(config: Tree) -> str:
    """Return the error text for an LDPC code whose check bytes do not fit the spare area."""
    least, room = ldpc_check_bytes(CIRCULANTS[0]), spare_of_word(config)
    words = config.flash.page_bytes // config.ecc.codeword_bytes
    return (
        f"a code word needs at least {least} check bytes, but has {room} bytes of the spare area; "
        f"flash.spare of {_size(least * words)} or more fits"
    )


def _no_die_code(config: Tree) -> str:
    """Return the error text for an on-die BCH code that does not exist or does not fit the spare
    area.
    """
    pe, flash = config.pe, config.flash
    word, words = pe.ecc_codeword_bytes, flash.page_bytes // pe.ecc_codeword_bytes
    return (
        "the code on the die is a BCH code whose check bytes are in flash.spare; "
        + _bch_errors_that_fit("pe.ecc_correctable_bits", word, words, flash.spare_bytes)
    )


BCH, LDPC = equal("ecc.code", "bch"), equal("ecc.code", "ldpc")
REAL = other_than("ecc.code", "capability")
WORDS = ("ecc.codeword", "flash.page", "ftl.mapping_unit")
ROOM = ("ecc.codeword", "ecc.correctable_bits", "flash.page", "flash.spare")

DIE_CODE = Condition(
    (*REAL.keys, "pe.protection"),
    lambda cfg: REAL.holds(cfg) and cfg.pe.protection == "on_die_ecc",
    f'{REAL.text} and pe.protection = "on_die_ecc"',
)
SINGLE_READS = Condition(
    (*REAL.keys, "pe.protection"),
    lambda cfg: REAL.holds(cfg) and cfg.pe.protection in ("on_die_ecc", "controller_ecc"),
    f'{REAL.text} and pe.protection = "on_die_ecc" or "controller_ecc"',
)

RULES: tuple[Rule, ...] = (
    only_if(
        REAL,
        WORDS,
        lambda cfg: mapping_unit(cfg) % cfg.ecc.codeword_bytes == 0,
        "a page, or a mapping unit, must consist of whole code words",
    ),
    only_if(
        REAL,
        ("ecc.correctable_bits",),
        lambda cfg: cfg.ecc.correctable_bits > 0,
        "ecc.correctable_bits must be at least 1",
    ),
    only_if(
        BCH,
        ("ecc.codeword", "ecc.correctable_bits"),
        lambda cfg: (
            cfg.ecc.correctable_bits <= MOST_BCH_ERRORS
            and bch_degree(cfg.ecc.codeword_bytes, cfg.ecc.correctable_bits) is not None
        ),
        _no_bch,
    ),
    only_if(BCH, ROOM, _bch_fits, _most_bch_errors),
    requires(BCH, equal("ecc.soft_reads", 0), "BCH codes are decoded with hard decision"),
    only_if(
        LDPC,
        ("ecc.codeword",),
        lambda cfg: cfg.ecc.codeword_bytes <= MOST_LDPC_BYTES,
        f"the LDPC code has words of at most {MOST_LDPC_BYTES >> 10} KiB",
    ),
    only_if(
        LDPC,
        ("ecc.codeword", "flash.page", "flash.spare"),
        lambda cfg: ldpc_circulant(cfg) is not None,
        _ldpc_room,
    ),
    requires(
        LDPC,
        equal("ecc.soft_reads", *SOFT_READS),
        "soft decision has one read on either side of the reference voltage",
    ),
    only_if(
        DIE_CODE,
        ("pe.ecc_codeword", "pe.ecc_correctable_bits", "flash.page", "flash.spare"),
        _die_code_fits,
        _no_die_code,
    ),
    requires(SINGLE_READS, equal("errors.exposure", 1), "a decoder decodes single reads"),
)
