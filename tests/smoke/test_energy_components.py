"""Which component does each counter pay for? One more of each counter, in a run of zeros."""

import pytest

from ondie.emu.analysis.energy import components
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.core.totals import Totals
from ondie.emu.paths.statement import Work

PAGE, BLOCK = 16_384, 4 << 20
SENSED = (
    "read_pages", "gc_read_pages", "merge_read_pages", "map_read_pages", "bpr_pages",
    "reservoir_read_pages", "retry_read_pages", "soft_read_pages", "fold_read_pages",
    "beside_pages", "lifted_pages",
)  # fmt: skip
PROGRAMMED = (
    "program_pages", "gc_program_pages", "failed_pages", "bpp_pages", "map_program_pages",
    "padding_pages", "second_pass_pages", "fold_program_pages", "stored_pages", "kept_pages",
    "landed_pages",
)  # fmt: skip
CODED_ON_DIE = ("bpr_pages", "bpp_pages", "reservoir_read_pages", "lifted_pages", "landed_pages")
"""Pages that the ECC of the dies decodes or encodes, if the dies have one."""
BITS = 8 * PAGE


def expected(counter: str, on_die: bool) -> dict[str, int]:
    """Component -> quantity that one more of a counter adds: bits, and byte counts x 8."""
    added = {}
    if counter in SENSED:
        added["NAND read"] = BITS
    if counter in PROGRAMMED:
        added["NAND program"] = BITS
    if counter == "erased_blocks":
        added["NAND erase"] = 8 * BLOCK
    if counter in ("ecc_decoded_pages", "ecc_encoded_pages"):
        added["ECC"] = BITS
    if counter in ("unasked_in_bytes", "unasked_out_bytes"):  # the code of these bytes is skipped
        added["ECC"] = -8
    if on_die and counter in CODED_ON_DIE:
        added["die ECC"] = BITS
    if counter == "turned_pages":  # out of one register, over the die's bus, into another
        added |= {"page registers": 2 * BITS, "die bus": BITS}
    if counter == "tunnel_wire_bytes":
        added["PCIe"] = 8
    return added


def quantities(cfg, counters: dict[str, int]) -> dict[str, int]:
    lines = dict.fromkeys(("channels in", "channels out", "DRAM", "link down", "link up"), 0)
    totals = Totals(
        counters, lines, {}, 0, 0, 0, (0, 0), (0, 0), 0, ({"step": (0, 0)},), {}, {}, PAGE, BLOCK, 1
    )
    return {part.name: part.quantity for part in components(cfg, totals, Work())}


@pytest.mark.parametrize("protection", ["controller_ecc", "on_die_ecc"])
@pytest.mark.parametrize("preset", ["optimstore-r1"])
def test_each_counter_is_charged_where_it_is_spent(preset, protection):
    cfg = load_preset(preset, [f"pe.protection={protection}"])
    none = dict.fromkeys(COUNTERS, 0)
    assert quantities(cfg, none) == {}
    for counter in COUNTERS:
        added = expected(counter, protection == "on_die_ecc")
        assert quantities(cfg, none | {counter: 1}) == added, counter
