"""How much does each counter add to each energy component? Every term of every sum, by hand."""

import pytest

from ondie.emu.analysis.energy import components
from ondie.emu.config.config import Config, load_preset
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.core.totals import Totals
from ondie.emu.paths.statement import Work

PAGE = 4096  # bytes
BLOCK = 64 * PAGE
BITS = 8 * PAGE
STATIONS = ("channels in", "channels out", "DRAM", "link down", "link up")

SENSED = (
    "read_pages", "gc_read_pages", "merge_read_pages", "map_read_pages", "bpr_pages",
    "reservoir_read_pages", "retry_read_pages", "soft_read_pages", "fold_read_pages",
    "beside_pages", "lifted_pages", "scrub_read_pages", "refresh_read_pages",
)  # fmt: skip
PROGRAMMED = (
    "program_pages", "gc_program_pages", "failed_pages", "bpp_pages", "map_program_pages",
    "padding_pages", "second_pass_pages", "fold_program_pages", "stored_pages", "kept_pages",
    "landed_pages", "remerged_pages", "refresh_program_pages",
)  # fmt: skip
DIE_CODED = ("bpr_pages", "bpp_pages", "reservoir_read_pages", "lifted_pages", "landed_pages")
"""Pages that pass through the on-die ECC, if the configuration has one."""


def expected(ports: int, die_ecc: bool) -> dict[tuple[str, str], int]:
    """(counter or station, component) -> quantity that one page, block or byte adds.

    Array operations are charged per bit of the page: 4096 x 8 = 32,768. The controller's ECC codes
    whole pages, less the bytes that were not requested: those are subtracted. A link byte crosses
    one port, or two if an uplink follows.
    """
    found = {(name, "NAND read"): BITS for name in SENSED}
    found |= {(name, "NAND program"): BITS for name in PROGRAMMED}
    found |= {
        ("erased_blocks", "NAND erase"): 8 * BLOCK,
        ("ecc_decoded_pages", "ECC"): BITS,
        ("ecc_encoded_pages", "ECC"): BITS,
        ("unasked_out_bytes", "ECC"): -8,
        ("unasked_in_bytes", "ECC"): -8,
        ("turned_pages", "page registers"): 2 * BITS,  # read from one register, written to another
        ("turned_pages", "die bus"): BITS,
        ("tunnel_wire_bytes", "PCIe"): 8 * ports,
        ("channels in", "channels"): 8,
        ("channels out", "channels"): 8,
        ("DRAM", "drive DRAM"): 8,
        ("link down", "PCIe"): 8 * ports,
        ("link up", "PCIe"): 8 * ports,
    }
    if die_ecc:
        found |= {(name, "die ECC"): BITS for name in DIE_CODED}
    return found


def totals(counters: dict[str, int], bytes_by: dict[str, int]) -> Totals:
    return Totals(
        counters=counters, bytes_by=bytes_by, planned={}, mapped_pages=0, valid_pages=0,
        filled_pages=0, super_pages=(0, 0), erases=(0, 0), in_flight=0, steps=({"step": (0, 1)},),
        busy_ps={}, busy_sum_ps={}, worked_ps={}, page_bytes=PAGE, block_bytes=BLOCK, devices=1,
    )  # fmt: skip


def find_quantities(cfg: Config, name: str | None = None) -> dict[str, int]:
    """Quantity of each component, if every counter is 1000 and ``name`` is 1001."""
    counters = dict.fromkeys(COUNTERS, 1000)
    bytes_by = dict.fromkeys(STATIONS, 1000)
    if name is not None:
        (counters if name in counters else bytes_by)[name] += 1
    return {
        part.name: part.quantity for part in components(cfg, totals(counters, bytes_by), Work())
    }


@pytest.mark.parametrize("protection", ["on_die_ecc", "controller_ecc"])
@pytest.mark.parametrize(("uplink", "ports"), [("0 B/s", 1), ("4 GB/s", 2)])
def test_every_counter_is_charged_for_what_it_moves(protection, uplink, ports):
    cfg = load_preset("optimstore-r1").replace({"pe.protection": protection, "link.uplink": uplink})
    before = find_quantities(cfg)
    found = {}
    for name in (*COUNTERS, *STATIONS):
        after = find_quantities(cfg, name)
        found |= {
            (name, part): after[part] - before[part]
            for part in after
            if after[part] != before[part]
        }
    assert found == expected(ports, protection == "on_die_ecc")
