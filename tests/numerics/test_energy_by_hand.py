"""Is the energy of a step what constants and counters of result.json give by hand, host included?

Nothing of ondie.emu.analysis.energy is used: the quantities are sums of the counters that
result.json prints, and arithmetic on the size of the model.
"""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from ondie.emu.analysis.compare import compare
from ondie.emu.analysis.result_json import result_data
from ondie.emu.config.config import load_preset
from ondie.emu.validate import model

N = 1_000_000
FORWARD_S, BACKWARD_S = 0.2, 0.1
DOCS = Path(__file__).parents[2] / "docs"
PATHS = ("host_offload", "on_die")
ENDS = ("low", "value", "high")
PS = 1e12
"""A second in ps: mW x ps = fJ, as bits x fJ/bit."""


@pytest.fixture(scope="module")
def result() -> dict:
    """result.json of a comparison on eight dies of R1, which erase blocks of 16 pages."""
    trace = model("adam", N)
    step = dataclasses.replace(
        trace.steps[0], forward_s=FORWARD_S, backward_s=BACKWARD_S, samples=64
    )
    trace = dataclasses.replace(trace, steps=(step,), samples_per_step=64)
    few = ["flash.channels=4", "flash.dies_per_channel=2", "flash.pages_per_block=16"]
    cfg = load_preset("optimstore-r1", [*few, "flash.blocks_per_plane=1000"])
    found = compare(trace, cfg, paths=PATHS, swing=False)
    return json.loads(json.dumps(result_data(found, 0)))


def constant(result: dict, key: str) -> tuple[float, float, float]:
    """Low, typical and high value of a constant, in base units."""
    section, _, name = key.partition(".")
    leaf = result["configuration"][section][name]
    return tuple(leaf.get(end, leaf["value"]) for end in ENDS)


def quantities(result: dict, path: dict) -> dict[str, float]:
    """Quantity of each constant in one step: bits, seconds or operations."""
    metrics = {name: entry["value"] for name, entry in path["metrics"].items()}
    counters, phases = path["counters"], path["phases_s"]
    page = 8 * result["configuration"]["flash"]["page"]["value"]
    pages_per_block = result["configuration"]["flash"]["pages_per_block"]["value"]
    training_s = phases["forward"] + phases["backward"]
    rest_s = metrics["step_s"] - training_s
    on_die = path["name"] == "on_die"
    # Arithmetic of Adam per value: LVS, QVS, ISQRT, VMUL, LVS: 1 + 1 + 2 + 0 + 1 additions,
    # 2 + 3 + 4 + 1 + 2 multiplications; 9 values read and 5 written; 3 cross the die's bus. A
    # stripe of one page per vector is computed by one ODC.
    values = counters.get("odc_ops", 0) * page // 32
    # Host DRAM per parameter. Both: FP16 gradient in 2 B, cast 2 + 4 B, out 4 B; new weights cast
    # 4 + 2 B, out to the accelerator 2 B. On die: weights in 4 B. Offload: gradient back 4 B,
    # unscaled 4 + 4 B, states in and out 12 + 12 B, and the update 16 + 12 B.
    passes = 2 + 6 + 4 + 6 + 2 + (4 if on_die else 4 + 8 + 24 + 28)
    return {
        "energy.nand_read": page * sum(counters.get(x, 0) for x in READS),
        "energy.nand_program": page * sum(counters.get(x, 0) for x in PROGRAMS),
        "energy.nand_erase": page * pages_per_block * counters.get("erased_blocks", 0),
        "energy.channel": 8 * metrics["channel_bytes"],
        "energy.dram": 8 * metrics["drive_dram_bytes"],
        "energy.ecc": page * sum(counters.get(f"ecc_{x}_pages", 0) for x in ("decoded", "encoded")),
        "link.energy": 8 * metrics["link_bytes"],
        "energy.pe_add": 5 * values,
        "energy.pe_multiply": 12 * values,
        "energy.register": 14 * 32 * values,
        "energy.pe_bus": 3 * 32 * values,
        "energy.controller": PS * metrics["step_s"],
        "energy.isp_idle": PS * metrics["step_s"],
        "host.dram_energy": 8 * passes * N,
        "host.update_power": PS * metrics["host_cpu_busy_s"],
        "host.wait_power": PS * (rest_s - metrics["host_cpu_busy_s"]),
        "host.accelerator_wait_power": PS * rest_s,
        "host.compute_power": PS * training_s,
    }


READS = ("read_pages", "gc_read_pages", "bpr_pages", "reservoir_read_pages")
PROGRAMS = ("program_pages", "gc_program_pages", "bpp_pages")


@pytest.mark.parametrize("name", PATHS)
def test_energy_of_a_step(result, name):
    (path,) = (each for each in result["paths"] if each["name"] == name)
    found = quantities(result, path)
    for end, word in enumerate(("low", "typical", "high")):
        joules = {key: amount * constant(result, key)[end] * 1e-15 for key, amount in found.items()}
        whole = math.fsum(joules.values())
        written = path["metrics"][f"energy_all_{word}_j"]["value"]
        assert written == pytest.approx(whole, rel=1e-9), joules
        # Without forward and backward: their compute power, and the drive that waits meanwhile.
        training_s = FORWARD_S + BACKWARD_S
        idle = ("host.compute_power", "energy.controller", "energy.isp_idle")
        outside = whole - sum(constant(result, key)[end] * 1e-3 for key in idle) * training_s
        written = path["metrics"][f"energy_drive_and_host_{word}_j"]["value"]
        assert written == pytest.approx(outside, rel=1e-6)


@pytest.mark.parametrize("name", PATHS)
def test_times_and_bytes_are_what_the_model_asks_for(result, name):
    """The counters themselves: an energy of wrong counters would otherwise agree."""
    (path,) = (each for each in result["paths"] if each["name"] == name)
    metrics = {key: entry["value"] for key, entry in path["metrics"].items()}
    offload = name == "host_offload"
    assert metrics["host_cpu_busy_s"] == pytest.approx(N / 0.8e9 if offload else 0.0)
    assert metrics["link_bytes"] == pytest.approx((32 if offload else 8) * N, rel=0.01)
    assert metrics["host_dram_bytes"] == (84 if offload else 24) * N
    assert sum(path["host_dram_bytes_per_step"].values()) == metrics["host_dram_bytes"]
    assert path["counters"]["erased_blocks"] > 0


@pytest.mark.parametrize("name", PATHS)
def test_the_page_on_energy_lists_the_passes_over_host_dram(result, name):
    (path,) = (each for each in result["paths"] if each["name"] == name)
    column = 3 if name == "host_offload" else 4
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in (DOCS / "energy.md").read_text("utf-8").splitlines()
        if line.startswith(("| gradient ", "| states ", "| update ", "| weights "))
    ]
    found = {row[0]: int(row[1] or 0) + int(row[2] or 0) for row in rows if row[column] == "yes"}
    counted = path["host_dram_bytes_per_step"]
    assert len(found) == len(counted)
    for label, n_bytes in found.items():
        (name,) = (each for each in counted if label.startswith(each))
        assert counted[name] == n_bytes * N, label
