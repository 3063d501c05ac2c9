"""Pairs of MQSim's two files drawn from a seed, and their comparison with an MQSim of the user's.

`python -m tests.config.mqsim_pairs FOLDER --seeds 1-20 [--collection] [--mqsim PROGRAM]` writes the
files of each seed; with --mqsim it runs that program and `ondie mqsim --quirks` on them, and prints
how far the mean response times are apart. PROGRAM: commit 7ec40e3 with `Normal_z2` of its random
numbers set to 0, and where it collects blocks with the corrections that test_mqsim_pairs.py names;
parked writes in order of arrival. A pair counts if PROGRAM generates all requests, and with
--collection at least 50 collections.
"""

import argparse
import json
import re
import subprocess
from pathlib import Path
from random import Random

from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.replay.mqsim import quirks
from ondie.emu.replay.mqsim import to_engine as simulate
from ondie.emu.replay.mqsim.flows import flows as flows_of
from ondie.emu.replay.mqsim.run import read_pair
from ondie.emu.units import InputError
from tests.config.mqsim_files import SYNTHETIC, drive_xml, flow_xml, workload_xml

SCHEMES = (
    "CWDP", "CWPD", "CDWP", "CDPW", "CPWD", "CPDW", "WCDP", "WCPD", "WDCP", "WDPC", "WPCD", "WPDC",
    "DCWP", "DCPW", "DWPC", "DPCW", "DPWC", "PCWD", "PCDW", "PWCD", "PWDC", "PDCW", "PDWC",
)  # fmt: skip
"""Plane allocation schemes; DWCP reads beyond the end of a list (quirk `unwritten_plane`)."""
MODES = ("TURNED_OFF", "WRITE_CACHE", "WRITE_READ_CACHE")
CLASSES = ("URGENT", "HIGH", "MEDIUM", "LOW")
SWITCH = ("true", "false")
FEWEST_COLLECTIONS = 50


def text(number: object) -> str:
    """Return a value as MQSim's files have it."""
    return str(number)


def numbers(first: int, count: int) -> str:
    """Return `count` numbers from `first`, with commas."""
    return ",".join(map(str, range(first, first + count)))


def draw_drive(r: Random, collection: bool) -> dict[str, str]:
    """Return the parameters of a drive that differ from mqsim_files.DRIVE."""
    c = r.choice
    read, program = c((25_000, 50_000, 75_000)), c((200_000, 600_000, 750_000))
    slower, longer = c((0, 20_000)), c((0, 300_000))
    drive = {
        "Seed": r.randrange(1, 1000),
        "PCIe_Lane_Bandwidth": c(("0.5", "1.0")),
        "PCIe_Lane_Count": c((2, 4, 8)),
        "IO_Queue_Depth": c((1024, 65535)),
        "Queue_Fetch_Size": c((8, 32, 512)),
        "Enabled_Preconditioning": c(("false", "false", "true")),
        "Data_Cache_Sharing_Mode": c(("SHARED", "EQUAL_PARTITIONING")),
        "Data_Cache_Capacity": c((1 << 20, 1 << 22, 1 << 24, 1 << 26)),
        "Data_Cache_DRAM_Data_Rate": c((100, 800)),
        "Data_Cache_DRAM_Data_Busrt_Size": c((1, 4)),
        "Ideal_Mapping_Table": c(SWITCH),
        "CMT_Sharing_Mode": c(("SHARED", "EQUAL_PARTITIONING")),
        "CMT_Capacity": c((1 << 14, 1 << 16, 1 << 18, 1 << 21)),
        "Plane_Allocation_Scheme": c(SCHEMES),
        "Transaction_Scheduling_Policy": c(("OUT_OF_ORDER", "PRIORITY_OUT_OF_ORDER")),
        "Overprovisioning_Ratio": c(("0.15", "0.2", "0.3")),
        "GC_Exec_Threshold": c(("0.05", "0.1", "0.15")),
        "GC_Block_Selection_Policy": c(("GREEDY", "RGA")),
        "Preemptible_GC_Enabled": c(SWITCH),
        "Static_Wearleveling_Enabled": "false",
        "CMD_Suspension_Support": c(("NONE", "ERASE", "PROGRAM", "PROGRAM_ERASE")),
        "Flash_Technology": c(("SLC", "MLC", "TLC")),
        "Page_Read_Latency_LSB": read,
        "Page_Read_Latency_CSB": read + slower,
        "Page_Read_Latency_MSB": read + 2 * slower,
        "Page_Program_Latency_LSB": program,
        "Page_Program_Latency_CSB": program + longer,
        "Page_Program_Latency_MSB": program + 2 * longer,
        "Channel_Transfer_Rate": c((200, 333, 400, 500, 1000)),
        "Flash_Channel_Width": c((1, 2)),
        "Page_Capacity": c((4096, 8192, 16384)),
        "Page_No_Per_Block": 64 if collection else c((32, 64, 128)),
        "Block_No_Per_Plane": c((48, 64, 96)) if collection else c((96, 128, 256)),
        "Flash_Channel_Count": c((1, 2)) if collection else c((1, 2, 4, 8)),
        "Chip_No_Per_Channel": c((1, 2)) if collection else c((1, 2, 4)),
        "Die_No_Per_Chip": c((1, 2)),
        "Plane_No_Per_Die": c((1, 2)),
    }
    return {name: text(value) for name, value in drive.items()}


def draw_flow(r: Random, drive: dict[str, str], collection: bool, flows: int) -> dict[str, str]:
    """Return the parameters of a flow that differ from mqsim_files.SYNTHETIC.

    Its pages fit into its working set: MQSim's preconditioning takes minutes where they do not.
    """
    c = r.choice
    channels = int(drive["Flash_Channel_Count"])
    used = c((channels, channels, channels, max(channels // 2, 1)))
    size, working = c((8, 16, 64)), c((20, 50, 85))
    flow = {
        "Channel_IDs": numbers(c((0, channels - used)), used),
        "Chip_IDs": numbers(0, int(drive["Chip_No_Per_Channel"])),
        "Die_IDs": numbers(0, int(drive["Die_No_Per_Chip"])),
        "Plane_IDs": numbers(0, int(drive["Plane_No_Per_Die"])),
        "Priority_Class": c(CLASSES),
        "Device_Level_Data_Caching_Mode": c(MODES),
        "Initial_Occupancy_Percentage": working * c((5, 8)) // 10,
        "Working_Set_Percentage": working,
        "Synthetic_Generator_Type": c(("QUEUE_DEPTH", "QUEUE_DEPTH", "QUEUE_DEPTH", "BANDWIDTH")),
        "Read_Percentage": c((0, 20, 50)) if collection else c((0, 20, 50, 80, 100)),
        "Address_Distribution": c(
            ("RANDOM_UNIFORM",) * 2 + ("RANDOM_HOTCOLD",) * 2 + ("STREAMING",)
        ),
        "Percentage_of_Hot_Region": c((10, 30)),
        "Generated_Aligned_Addresses": c(SWITCH),
        "Address_Alignment_Unit": c((8, 16)),
        "Request_Size_Distribution": c(("FIXED", "FIXED", "NORMAL")),
        "Average_Request_Size": size,
        "Variance_Request_Size": max(size // 8, 1),
        "Seed": r.randrange(1, 10_000),
        "Average_No_of_Reqs_in_Queue": c((1, 4, 16)),
        "Bandwidth": c((10_000_000, 30_000_000, 60_000_000)),
        "Total_Requests_To_Generate": c((3000, 6000)),
    }
    if collection:  # enough to write the flow's planes about 1.3 times
        planes = used * int(drive["Chip_No_Per_Channel"]) * int(drive["Die_No_Per_Chip"])
        planes *= int(drive["Plane_No_Per_Die"])
        pages = planes * int(drive["Block_No_Per_Plane"]) * int(drive["Page_No_Per_Block"]) // flows
        each = max(size * 512 / int(drive["Page_Capacity"]), 1)
        writes = 1 - int(flow["Read_Percentage"]) / 100
        flow["Total_Requests_To_Generate"] = round(1.3 * pages / each / writes) + 2000
    return {name: text(value) for name, value in flow.items()}


def draw(seed: int, collection: bool) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return (drive, flows) of a seed: the parameters that differ from mqsim_files.py.

    `collection`: a small drive that is written more than once, so that it collects blocks.
    """
    r = Random(f"{'gc' if collection else 'nogc'}-{seed}")
    drive = draw_drive(r, collection)
    flows = r.choice((1, 1, 2) if collection else (1, 1, 2, 4))
    return drive, [draw_flow(r, drive, collection, flows) for _ in range(flows)]


def write(folder: Path, drive: dict[str, str], flows: list[dict[str, str]]) -> tuple[Path, Path]:
    """Write ssd.xml and load.xml; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "ssd.xml", folder / "load.xml"
    paths[0].write_text(drive_xml(**drive))
    paths[1].write_text(workload_xml([flow_xml(SYNTHETIC, **flow) for flow in flows]))
    return paths


def results(path: Path) -> tuple[list[float], list[int], int]:
    """Return (mean response times in us, generated requests) of the flows, and the collections.

    An MQSim whose Device_Response_Time has decimals gives exact means, else whole us.
    """
    found = path.read_text() if path.exists() else ""

    def values(name: str) -> list[str]:
        return re.findall(f"<{name}>([0-9.]+)</{name}>", found)

    collections = re.search(r'Total_GC_Executions="(\d+)"', found)
    return (
        list(map(float, values("Device_Response_Time"))),
        list(map(int, values("Request_Count"))),
        int(collections[1]) if collections else 0,
    )


def run_mqsim(program: Path, folder: Path, timeout_s: float) -> dict[str, object]:
    """Return MQSim's means, counts and collections of the pair in `folder`; kept in mqsim.json."""
    kept, result = folder / "mqsim.json", folder / "load_scenario_1.xml"
    if kept.exists():
        return json.loads(kept.read_text())
    result.unlink(missing_ok=True)
    command = [program.resolve(), "-i", "ssd.xml", "-w", "load.xml"]
    silent = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    try:
        subprocess.run(command, cwd=folder, timeout=timeout_s, check=False, **silent)
    except subprocess.TimeoutExpired:
        result.unlink(missing_ok=True)
    means, counts, collections = results(result)
    result.unlink(missing_ok=True)
    found = {"means": means, "counts": counts, "collections": collections}
    kept.write_text(json.dumps(found))
    return found


def run_ondie(folder: Path) -> list[float]:
    """Return the mean response times of the pair in `folder` with --quirks, in us.

    Raises what `ondie mqsim` does for a pair that cannot run.
    """
    drive, scenarios = read_pair(folder / "ssd.xml", folder / "load.xml")
    names = quirks.obeyed(True)
    done = simulate.played(drive, flows_of(drive, scenarios[0], names, []), names)
    return [float((each["end"] - each["start"]).mean()) / 1e6 for each in done.requests]


def comparable(found: dict[str, object], flows: list[dict[str, str]], collection: bool) -> bool:
    """Whether MQSim generated all requests, and collected enough."""
    asked = [int(flow["Total_Requests_To_Generate"]) for flow in flows]
    enough = not collection or found["collections"] >= FEWEST_COLLECTIONS
    return found["counts"] == asked and all(found["means"]) and enough


def compared(folder: Path, program: Path, seed: int, collection: bool, timeout_s: float) -> str:
    """Return the line of a pair whose files are in `folder`."""
    flows = draw(seed, collection)[1]
    found = run_mqsim(program, folder, timeout_s)
    if not comparable(found, flows, collection):
        return f"{folder.name}: not comparable {found['counts']} {found['collections']}"
    try:
        means = run_ondie(folder)
    except (InputError, SimulationError) as error:
        return f"{folder.name}: MISSED {error}"
    apart = max(abs(a / b - 1) for a, b in zip(means, found["means"], strict=True))
    word = "MISSED" if apart > (0.03 if collection else 0.01) else "within"
    both = [f"{a:.3f}/{b:.3f}" for a, b in zip(means, found["means"], strict=True)]
    return f"{folder.name}: {word} {100 * apart:.4f} % {' '.join(both)} {found['collections']}"


def main() -> None:
    """Write the pairs of the seeds, and compare them if there is a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="1-20", help="first-last")
    parser.add_argument("--collection", action="store_true")
    parser.add_argument("--mqsim", type=Path, help="the MQSim to compare with")
    parser.add_argument("--timeout", type=float, default=60, help="s, of a run of MQSim")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        folder = asked.folder / f"{'gc' if asked.collection else 'nogc'}-{seed}"
        write(folder, *draw(seed, asked.collection))
        if asked.mqsim:
            line = compared(folder, asked.mqsim, seed, asked.collection, asked.timeout)
            print(line, flush=True)


if __name__ == "__main__":
    main()
