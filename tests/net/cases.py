"""The cases of the regression net: command lines of `ondie` and the output that each keeps.

Owns the table CASES, the input files that cases read, and the reasons in NOT_COVERED. Does not own
the run or the comparison (run.py). It imports nothing from the package.
Source: none.

A case runs in an empty folder with its input files, so its command line has relative paths only.
Every drive is small and every trace is short: a case takes seconds.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One command line.

    keep: parts of the output, `json:FILE`, `stdout` (JSON), `table` (cells of a printed table) or
    `hash:FILE`. inputs: names of INPUTS, or `tests:PATH` for a file to copy. codes: accepted exit
    codes. edits: (tag, content) pairs that replace contents in the copied files.
    """

    argv: tuple[str, ...]
    keep: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    codes: tuple[int, ...] = (0,)
    edits: tuple[tuple[str, str], ...] = ()


# --- input files


def numbers(seed: int) -> Iterator[int]:
    """Pseudo-random numbers below 2**31; they depend on no library."""
    state = seed
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 33


def requests(n: int, pages: int, seed: int, write: int = 70) -> Iterator[tuple[int, str, int, int]]:
    """``n`` requests (time in us, op, offset in 4 KiB pages, pages); ``write`` % of them write.
    Half of the requests go to a tenth of the drive."""
    draw = numbers(seed)
    now = 0
    for _ in range(n):
        now += next(draw) % 60
        size = 1 + next(draw) % 4
        room = pages // 10 if next(draw) % 2 else pages
        at = next(draw) % (room - size)
        yield now, "write" if next(draw) % 100 < write else "read", at, size


PAGES = 10_000
"""Pages of 4 KiB that every small drive of a replay offers."""


def mqsim_trace() -> str:
    return "".join(
        f"{t * 1000} 0 {at * 8} {size * 8} {0 if op == 'write' else 1}\n"
        for t, op, at, size in requests(15_000, PAGES, 1)
    )


def sector_trace() -> str:
    """Requests that are not aligned to pages."""
    return "".join(
        f"{t * 1000} 0 {at * 8 + at % 7} {size * 3} {0 if op == 'write' else 1}\n"
        for t, op, at, size in requests(12_000, PAGES - 8, 2)
    )


def msr_trace() -> str:
    return "".join(
        f"{128166372003061629 + t * 10},host,0,{op.title()},{at * 4096},{size * 4096},100\n"
        for t, op, at, size in requests(3000, PAGES, 3, 40)
    )


def two_volumes() -> str:
    """An MSR trace of two devices, of which each has half of the addresses."""
    return "".join(
        f"{128166372003061629 + t * 10},host,{i % 2},{op.title()},{at * 4096},{size * 4096},100\n"
        for i, (t, op, at, size) in enumerate(requests(1500, PAGES // 4, 4))
    )


def fio_log() -> str:
    """A log of fio with trims and syncs."""
    lines = ["fio version 3 iolog", "0 /data/file add", "1 /data/file open"]
    for i, (t, op, at, size) in enumerate(requests(2500, PAGES, 5)):
        word = "trim" if i % 9 == 8 else op
        lines.append(f"{t // 10 + 1} /data/file {word} {at * 4096} {size * 4096}")
        if i % 100 == 99:
            lines.append(f"{t // 10 + 1} /data/file sync 0 0")
    lines.append(f"{t // 10 + 2} /data/file close")
    return "\n".join(lines) + "\n"


def foreground_trace() -> str:
    """Few reads and writes for a drive that also trains."""
    return "".join(
        f"{t * 1000} 0 {at * 32} 32 {0 if op == 'write' else 1}\n"
        for t, op, at, _ in requests(400, 200, 6, 30)
    )


DEEPSPEED = {
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {
            "device": "nvme",
            "nvme_path": "/nvme",
            "pipeline_read": True,
            "pipeline_write": True,
            "buffer_count": 12,
        },
        "offload_param": {"device": "nvme", "nvme_path": "/nvme"},
        "sub_group_size": 20000,
    },
    "bf16": {"enabled": True},
    "aio": {"block_size": 131072, "queue_depth": 4, "thread_count": 1},
}

LOAD = "seconds,node,cores\n0,0,0\n20,1,2\n60,3,3\n90,1,0\n"
MEMBERS = "seconds,node,event\n30,2,leaves\n60,4,dies\n100,2,joins\n"

INPUTS: dict[str, Callable[[], str]] = {
    "random.trace": mqsim_trace,
    "sectors.trace": sector_trace,
    "mixed.csv": msr_trace,
    "two.csv": two_volumes,
    "job.log": fio_log,
    "others.trace": foreground_trace,
    "deepspeed.json": lambda: json.dumps(DEEPSPEED),
    "load.csv": lambda: LOAD,
    "members.csv": lambda: MEMBERS,
}


def write_inputs(folder: Path, case: Case, tests: Path) -> None:
    """Write the input files of ``case``; ``tests`` is the folder of the project's tests."""
    for name in case.inputs:
        path = name.removeprefix("tests:")
        if name.startswith("tests:"):
            text = (tests / path).read_text(encoding="utf-8")
            for tag, value in case.edits:
                text = re.sub(f"<{tag}>[^<]*<", f"<{tag}>{value}<", text)
            (folder / Path(path).name).write_text(text, encoding="utf-8")
        else:
            (folder / name).write_text(INPUTS[name]())


# --- command lines


def sets(settings: Mapping[str, object]) -> tuple[str, ...]:
    """--set for every setting."""
    return tuple(itertools.chain(*(("--set", f"{key}={value}") for key, value in settings.items())))


SMALL = {
    "flash.channels": 2,
    "flash.dies_per_channel": 2,
    "flash.blocks_per_plane": 64,
    "flash.pages_per_block": 16,
    "ftl.gc_low_blocks": 2,
}
"""A drive of four dies, each of which a small model uses."""
SMALL_GEN4 = {**SMALL, "flash.pages_per_block": 18}
"""The same for gen4-tlc, whose blocks consist of word lines of three pages."""
WHOLE_PAGES = {
    "flash.programming": "page",
    "flash.t_program": "400 us",
    "ftl.mapping_unit": "0 B",
    "ftl.gather_time": "10 ms",
    "cache.mode": "off",
    "cache.dirty_share": 0.5,
    "cache.destage_pages": 0,
    "frontend.read_delay": "0 us",
    "frontend.write_delay": "0 us",
}
"""gen4-tlc without its write cache, mapping units, word lines and firmware latencies."""
REPLAYED = {
    "flash.channels": 2,
    "flash.dies_per_channel": 2,
    "flash.planes_per_die": 4,
    "flash.blocks_per_plane": 32,
    "flash.pages_per_block": 32,
    "flash.page": "4 KiB",
    "ftl.over_provisioning": 0.3,
    "ftl.gc_low_blocks": 2,
}
"""A drive of PAGES pages for block traces."""
SUSPEND = {
    "flash.t_suspend_program": "5 us",
    "flash.t_suspend_erase": "20 us",
    "flash.t_resume": "2 us",
    "flash.max_suspends": 4,
}
MESSAGES = {
    "frontend.doorbell": "4 B",
    "frontend.request": "24 B",
    "frontend.entry": "64 B",
    "frontend.completion": "16 B",
    "link.packet": "256 B",
    "link.packet_overhead": "24 B",
}
PLANE = {"ftl.block_unit": "plane"}
UNITS = {"ftl.mapping_unit": "512 B", "flash.page": "4 KiB"}
COLLECTED = {"ftl.erase": "collected"}
CACHE = {"cache.capacity": "2 MiB"}
WORD_LINES = {"flash.cell": "TLC", "flash.pages_per_block": 36, "flash.blocks_per_plane": 29}
ERRORS = {"ecc.codeword": "1 KiB", "ecc.correctable_bits": 40}
TUNNEL = {
    "tunnel.payload": "64 KiB",
    "tunnel.outstanding": 8,
    "tunnel.command": "100 us",
    "tunnel.mtu": "9000 B",
    "tunnel.relay_threads": 1,
}

# name: changes of the small drive for block traces. The order of channels, ways, dies and planes
# follows by turns, so that every order has a case.
MECHANISMS: dict[str, dict[str, object]] = {
    "default": {},
    "units-of-planes": {**PLANE, "cache.destage_idle": "false"},
    "planes-read-alone": {**PLANE, "flash.plane_reads": "alone"},
    "static": {"ftl.placement": "static"},
    "static-planes": {**PLANE, "ftl.placement": "static"},
    "by-age": {"ftl.write_streams": 2, "ftl.stream_policy": "by_age"},
    "streams-each": {
        "ftl.write_streams": 2,
        "ftl.stream_policy": "by_age",
        "ftl.gc_streams": "each",
        "ftl.open_blocks": "ahead",
    },
    "one-stream": {"ftl.stream_policy": "one", "ftl.open_blocks": "ahead"},
    "gc-parallel": {"ftl.gc_parallel": 3, "ftl.gc_low_blocks": 4},
    "gc-whole-blocks": {"ftl.gc_window_pages": 0},
    "gc-stop": {"ftl.gc_stop_blocks": 2},
    "gc-background": {"ftl.gc_priority": "background"},
    "gc-urgent": {"ftl.gc_priority": "urgent", "ftl.gc_hard_blocks": 3},
    "gc-exclusive": {"ftl.gc_priority": "exclusive", **COLLECTED},
    "copyback": {"ftl.gc_copyback": "true"},
    "classes": {"ftl.host_order": "class", **COLLECTED, "ftl.gc_priority": "background"},
    "locked": {"ftl.victim_pages": "locked", "ftl.placement": "static"},
    "placed": {"ftl.map_update": "placed"},
    "as-written": {"ftl.unwritten": "as_written"},
    "wear-any": {"ftl.wear_dynamic": "false"},
    "wear-static": {"ftl.wear_static_cycles": 2, **COLLECTED},
    "bad-blocks": {"ftl.bad_blocks": 0.03},
    "program-failures": {"ftl.program_failures": 0.0001},
    "erase-failures": {"ftl.erase_failures": 0.01, **COLLECTED},
    "suspend-erase": {**SUSPEND, "flash.suspend": "erase"},
    "suspend-program": {**SUSPEND, "flash.suspend": "program", "flash.status": "read"},
    "suspend-both": {**SUSPEND, "flash.suspend": "program_erase", "flash.suspend_reads": 1},
    "power-planes": {"flash.power_planes": 5},
    "data-first": {"flash.grants": "data", "flash.interleave_commands": "false"},
    "no-overlap": {
        "flash.multi_plane": "false",
        "flash.cache_read": "false",
        "flash.cache_program": "false",
    },
    "messages": MESSAGES,
    "whole-commands": {"frontend.transfer": "command", **MESSAGES},
    "chips": {"flash.chip_busy": "per_chip", "flash.dies_per_chip": 2},
    "nv-ddr2": {"flash.interface": "NV-DDR2", "flash.bus": "400 MT/s", "flash.status": "read"},
    "nv-ddr3": {"flash.interface": "NV-DDR3", "flash.t_plane_busy": "1 us"},
    "nv-lpddr4": {"flash.interface": "NV-LPDDR4"},
    "mqsim-bus": {"flash.interface": "MQSim"},
    "slc": {"flash.cell": "SLC"},
    "mlc-planar": {
        "flash.cell": "MLC",
        "flash.page_types": "planar",
        "flash.t_read_upper": "20 us",
        "flash.t_program_upper": "500 us",
    },
    "tlc-turns": {
        "flash.cell": "TLC",
        "flash.page_types": "turns",
        "flash.t_read_middle": "10 us",
        "flash.t_read_upper": "20 us",
        "flash.t_program_middle": "100 us",
        "flash.t_program_upper": "500 us",
    },
    "one-shot": {**WORD_LINES, "flash.programming": "one_shot"},
    "two-pass": {
        **WORD_LINES,
        "flash.cell": "QLC",
        "flash.programming": "two_pass",
        "flash.t_program_second": "300 us",
    },
    "pslc-static": {"ftl.pslc": "static", "ftl.pslc_share": 0.1, "ftl.fold_idle": "100 us"},
    "pslc-dynamic": {"ftl.pslc": "dynamic", "ftl.pslc_share": 0.2, "ftl.fold_blocks": 1},
    "pslc-wait": {
        "ftl.pslc": "static",
        "ftl.pslc_share": 0.1,
        "ftl.pslc_full": "wait",
        "ftl.fold_blocks": 1,
    },
    "map-cache": {"ftl.map_cache": "4 KiB"},
    "map-cache-planes": {**PLANE, "ftl.map_cache": "4 KiB", "ftl.map_writes": 1},
    "sectors": {"ftl.partial_pages": "sectors"},
    "mapping-units": UNITS,
    "mapping-units-planes": {**UNITS, **PLANE},
    "mapping-units-static": {**UNITS, "ftl.placement": "static"},
    # A case's place in this table selects its allocation order and queue depth: add at the end.
    "victims-d-choices": {"ftl.gc_policy": "d_choices"},
    "victims-random": {"ftl.gc_policy": "random"},
    "victims-random-some": {"ftl.gc_policy": "random_some"},
    "victims-fifo": {"ftl.gc_policy": "fifo"},
    "victims-cost-benefit": {"ftl.gc_policy": "cost_benefit"},
    "cache-write-back": {**CACHE, "cache.mode": "write_back", "cache.destage_idle": "true"},
    "cache-write-back-small": {
        "cache.capacity": "64 KiB",
        "cache.mode": "write_back",
        "cache.dirty_share": 0.25,
        "cache.destage_idle": "false",
    },
    "cache-write-through": {**CACHE, "cache.mode": "write_through"},
    "cache-read": {**CACHE, "cache.mode": "read"},
    "cache-read-write": {**CACHE, "cache.mode": "read_write", "cache.destage_pages": 4},
    "cache-over-map-cache": {**CACHE, "cache.mode": "read_write", "ftl.map_cache": "4 KiB"},
    "errors-rate": {**ERRORS, "errors.kind": "rate", "errors.rate": 0.003},
    "errors-model": {
        **ERRORS,
        "errors.kind": "model",
        "errors.initial_cycles": 2000,
        "errors.initial_days": 90,
        "flash.retention": "3 months",
        "ftl.reclaim_retries": 3,
    },
    "errors-soft": {
        **ERRORS,
        "errors.kind": "model",
        "errors.initial_cycles": 3000,
        "errors.initial_days": 200,
        "errors.coding": "binary",
        "ecc.retries": 2,
        "ecc.soft_reads": 3,
        "ecc.soft_gain": 2,
        "ecc.soft_decode": "10 us",
        "flash.rated_retention": "3 months",
        "flash.retention": "1 year",
        "ftl.reclaim_reads": 200,
    },
    "fetch-limit": {"frontend.fetch_limit": 4, "dram.row": "8 KiB", "dram.t_rcd": "14 ns"},
}
ORDERS = tuple("".join(order) for order in itertools.permutations("CWDP"))
PARTS = {"sectors", "mapping-units", "mapping-units-planes", "mapping-units-static", "locked"}
"""Mechanisms for requests that are not aligned to pages."""
STEADY = {"victims-d-choices", "by-age", "streams-each", "gc-background", "pslc-dynamic"}
"""Mechanisms that start from a drive in steady state."""


def replay(
    trace: str, form: str, settings: Mapping[str, object], *more: str, device: str = "gen4-tlc",
    keep: tuple[str, ...] = (), inputs: tuple[str, ...] | None = None,
) -> Case:  # fmt: skip
    unit = ("--time-unit", "ns") if form == "mqsim" else ()
    argv = (
        "replay", trace, "--from", form, *unit, "--device", device, *sets(settings), *more,
        "--json", "out.json", "--quiet",
    )  # fmt: skip
    return Case(argv, ("json:out.json", *keep), (trace,) if inputs is None else inputs)


PLAIN = {**WHOLE_PAGES, **REPLAYED}


def replays() -> Iterator[tuple[str, Case]]:
    for i, (name, changes) in enumerate(MECHANISMS.items()):
        order = {"ftl.allocation": ORDERS[i % len(ORDERS)]}
        trace = "sectors.trace" if name in PARTS else "random.trace"
        start = ("--precondition", "steady") if name in STEADY else ()
        closed = ("--queue-depth", "16") if i % 3 == 0 else ()
        yield (
            f"replay-{name}",
            replay(trace, "mqsim", {**PLAIN, **order, **changes}, *start, *closed),
        )
    word_lines = {"flash.page": "16 KiB", "flash.planes_per_die": 1, "flash.pages_per_block": 33}
    yield (
        "replay-on-gen4-tlc",
        replay("mixed.csv", "msr", {**REPLAYED, **word_lines, "cache.capacity": "1 MiB"}),
    )
    for device in ("laguna", "newport", "optimstore-r1", "optimstore-r2", "smartssd"):
        reservoir = {"ftl.reservoir_fraction": 0} if device.startswith("optim") else {}
        yield (
            f"replay-on-{device}",
            replay("mixed.csv", "msr", {**REPLAYED, **reservoir}, device=device),
        )
    yield "replay-empty", replay("mixed.csv", "msr", PLAIN, "--precondition", "none")
    yield "replay-fast", replay("mixed.csv", "msr", PLAIN, "--as-fast-as-possible")
    yield "replay-speed", replay("mixed.csv", "msr", PLAIN, "--open", "--speed", "3.5")
    yield "replay-volume", replay("two.csv", "msr", PLAIN, "--volume", "host_1")
    yield "replay-side-by-side", replay("two.csv", "msr", PLAIN, "--side-by-side")
    yield "replay-log", replay(
        "mixed.csv", "msr", PLAIN, "--log", "log.csv", "--limit", "800", "--seed", "7",
        keep=("hash:log.csv",),
    )  # fmt: skip
    yield "replay-fio", replay("job.log", "fio3", PLAIN, "--queue-depth", "8")
    yield (
        "replay-fio-sample",
        replay("fio3.log", "fio", PLAIN, inputs=("tests:protocol/samples/fio3.log",)),
    )
    yield "replay-blkparse", replay(
        "blkparse.txt", "blkparse", PLAIN, "--event", "Q", "--sort", "--footprint", "wrap",
        inputs=("tests:protocol/samples/blkparse.txt",),
    )  # fmt: skip


MQSIM = "tests:fidelity/mqsim/configs/"
HALF_READS = {"Read_Percentage": "50"}
# name: changes of MQSim's case V08, which collects blocks, with fewer requests.
MQSIM_EDITS: dict[str, dict[str, str]] = {
    "rga": {"GC_Block_Selection_Policy": "RGA"},
    "random": {"GC_Block_Selection_Policy": "RANDOM"},
    "random-p": {"GC_Block_Selection_Policy": "RANDOM_P"},
    "random-pp": {"GC_Block_Selection_Policy": "RANDOM_PP"},
    "fifo": {"GC_Block_Selection_Policy": "FIFO"},
    "sata": {"HostInterface_Type": "SATA", **HALF_READS},
    "priority": {"Transaction_Scheduling_Policy": "PRIORITY_OUT_OF_ORDER", **HALF_READS},
    "write-cache": {"Device_Level_Data_Caching_Mode": "WRITE_CACHE", **HALF_READS},
    "read-cache": {"Device_Level_Data_Caching_Mode": "READ_CACHE", **HALF_READS},
    "write-read-cache": {"Device_Level_Data_Caching_Mode": "WRITE_READ_CACHE", **HALF_READS},
    "map-cache": {"Ideal_Mapping_Table": "false", "CMT_Capacity": "65536"},
    "preemptible": {"Preemptible_GC_Enabled": "true", **HALF_READS},
    "wear": {"Static_Wearleveling_Enabled": "true", "Static_Wearleveling_Threshold": "3"},
    "suspension": {
        "Flash_Technology": "TLC",
        "CMD_Suspension_Support": "PROGRAM_ERASE",
        **HALF_READS,
    },
    "hot-cold": {"Address_Distribution": "RANDOM_HOTCOLD", "Percentage_of_Hot_Region": "20"},
    "streaming": {"Address_Distribution": "STREAMING", **HALF_READS},
    "allocation": {"Plane_Allocation_Scheme": "WDPC"},
}


def mqsims() -> Iterator[tuple[str, Case]]:
    """MQSim's own files, as far as they need no recorded requests."""
    for name in ("V01", "V02", "V04", "V05", "V06", "V08", "V14", "V20"):
        files = (f"{name}.ssdconfig.xml", f"{name}.workload.xml")
        for quirks in ((), ("--quirks",)) if name in ("V02", "V08") else ((),):
            argv = ("mqsim", "-i", files[0], "-w", files[1], *quirks)
            more = ("--json", "out.json", "--out", "results", "--quiet")
            yield (
                f"mqsim-{name}{'-quirks' * bool(quirks)}",
                Case(
                    (*argv, *more),
                    ("json:out.json", f"hash:results/{name}.workload_scenario_1.xml"),
                    tuple(MQSIM + file for file in files),
                ),
            )
    files = ("V08.ssdconfig.xml", "V08.workload.xml")
    for name, changes in MQSIM_EDITS.items():
        edits = {"Total_Requests_To_Generate": "60000"} | changes
        yield f"mqsim-{name}", Case(
            ("mqsim", "-i", files[0], "-w", files[1], "--json", "out.json", "--out", "results",
             "--quiet"),
            ("json:out.json", "hash:results/V08.workload_scenario_1.xml"),
            tuple(MQSIM + file for file in files), edits=tuple(edits.items()),
        )  # fmt: skip


def compare(trace: str, device: str, settings: Mapping[str, object], *more: str,
            inputs: tuple[str, ...] = (), keep: tuple[str, ...] = (),
            swing: bool = False) -> Case:  # fmt: skip
    argv = ("compare", trace, "--device", device, *sets(settings), *more)
    return Case(
        (*argv, *(() if swing else ("--no-swing",)), "--out", "out", "--quiet"),
        keep or ("json:out/result.json",), inputs,
    )  # fmt: skip


OFFLOADED = "host_offload,host_offload_pipelined,smart_base"
OPTIMSTORE = f"{OFFLOADED},in_storage,on_die,chip_level,smart_update,smart_handler"
PATHS = {
    "optimstore-r1": OPTIMSTORE,
    "optimstore-r2": OPTIMSTORE,
    "newport": f"{OFFLOADED},in_storage,stannis,smart_update,smart_handler",
    "laguna": f"{OFFLOADED},in_storage,stannis,smart_update,smart_handler",
    "smartssd": f"{OFFLOADED},in_storage,smart_update,smart_handler,smart_comp",
    "gen4-tlc": OFFLOADED,
    "csd-pe": f"{OPTIMSTORE},stannis",
}
"""The paths that every preset can run."""
SMART = "host_offload,smart_base,smart_update,smart_handler,smart_comp"


def compares() -> Iterator[tuple[str, Case]]:
    for device, paths in PATHS.items():
        small = SMALL_GEN4 if device == "gen4-tlc" else SMALL
        yield (
            f"compare-{device}",
            compare("mlp-fp16", device, small, "--paths", paths, "--steps", "2"),
        )
        yield f"compare-{device}-default-paths", compare("gpt-small", device, small, "--steps", "2")
    yield "compare-whole-preset", compare("gpt-small", "optimstore-r1", {}, "--steps", "2")
    yield "compare-swing", compare("mlp-fp16", "optimstore-r1", {}, "--steps", "1", swing=True)
    yield "compare-swing-newport", compare("mlp-fp16", "newport", {}, "--steps", "1", swing=True)
    yield "compare-convnet", compare("mobilenetv2-digits", "newport", SMALL, "--steps", "2")
    yield (
        "compare-drives",
        compare("mlp-fp16", "smartssd", SMALL, "--devices", "3", "--paths", SMART, "--steps", "1"),
    )
    yield (
        "compare-drives-uplink",
        compare("mlp-fp16", "newport", {**SMALL, "link.uplink": "3.5 GB/s"}, "--devices", "4"),
    )
    for allreduce in ("ring", "tree", "star"):
        for batch in ("same", "tuned"):
            yield f"compare-stannis-{allreduce}-{batch}", compare(
                "mobilenetv2-digits", "newport", SMALL, "--devices", "3", "--paths",
                "host_offload,stannis", "--allreduce", allreduce, "--batch", batch, "--steps", "1",
            )  # fmt: skip
    yield "compare-stannis-given", compare(
        "mobilenetv2-digits", "newport", SMALL, "--devices", "3", "--paths", "host_offload,stannis",
        "--host-batch", "50", "--drive-batch", "4", "--cores-taken", "2", "--slowdown", "linear",
        "--steps", "1",
    )  # fmt: skip
    for notification, packed in (("burst", "false"), ("command", "true")):
        yield f"compare-tunnel-{notification}", compare(
            "mobilenetv2-digits", "newport",
            {**SMALL, **TUNNEL, "tunnel.notification": notification, "tunnel.concatenate": packed},
            "--devices", "2", "--paths", "host_offload,stannis", "--steps", "1",
        )  # fmt: skip
    for form in ("bf16_master", "fp16", "bf16", "bf16_all", "bf16_stochastic", "int8_dynamic",
                 "int8_linear"):  # fmt: skip
        on_die = ",on_die" if form in ("fp16", "bf16", "bf16_all") else ""
        yield f"compare-format-{form}", compare(
            "gpt-small", "optimstore-r1", {**SMALL, "pe.narrow_values": 2}, "--format", form,
            "--paths", f"host_offload,in_storage{on_die}", "--steps", "2", "--seed", "3",
        )  # fmt: skip
    yield "compare-weights-up-fp16", compare(
        "gpt-small", "optimstore-r1", SMALL, "--weights-up", "fp16", "--form", "torch", "--steps",
        "2",
    )  # fmt: skip
    yield (
        "compare-sampled",
        compare("gpt-6.7b", "optimstore-r1", {}, "--sampled", "--steps", "1"),
    )
    yield "compare-sampled-smart", compare(
        "gpt2-355m", "smartssd", {}, "--sampled", "--steps", "1", "--paths", SMART,
        "--compression", "4",
    )  # fmt: skip
    yield "compare-foreground", compare(
        "mlp-fp16", "optimstore-r1", SMALL, "--foreground", "others.trace", "--foreground-from",
        "mqsim", "--foreground-time-unit", "ns", "--steps", "2", inputs=("others.trace",),
    )  # fmt: skip
    yield "compare-foreground-depth", compare(
        "mlp-fp16", "newport", SMALL, "--foreground", "others.trace", "--foreground-from",
        "mqsim", "--foreground-time-unit", "ns", "--foreground-depth", "4", "--steps", "1",
        inputs=("others.trace",),
    )  # fmt: skip
    yield "compare-foreground-speed", compare(
        "mlp-fp16", "gen4-tlc", SMALL | WHOLE_PAGES, "--foreground",
        "others.trace", "--foreground-from",
        "mqsim", "--foreground-time-unit", "ns", "--foreground-speed", "2", "--steps", "1",
        inputs=("others.trace",),
    )  # fmt: skip
    yield "compare-deepspeed", compare(
        "gpt-small", "gen4-tlc", SMALL_GEN4, "--ds-config", "deepspeed.json", "--steps", "2",
        "--paths", "host_offload", inputs=("deepspeed.json",),
    )  # fmt: skip
    yield "compare-offload-options", compare(
        "gpt-small", "gen4-tlc", {**SMALL_GEN4, "host.subgroup_params": 20000}, "--offload",
        "parameters=true", "--offload", "checkpointing=true", "--offload", "pipeline_read=true",
        "--offload", "ratio=0.6", "--offload", "threads=2", "--offload", "overlap_events=false",
        "--paths", "host_offload,host_offload_pipelined", "--steps", "2",
    )  # fmt: skip
    yield (
        "compare-target-step",
        compare("mlp-fp16", "optimstore-r1", SMALL, "--target-step", "20 ms", "--steps", "1"),
    )
    yield (
        "compare-forward-backward",
        compare(
            "mlp-fp16", "laguna", SMALL, "--forward", "3 ms", "--backward", "7 ms", "--steps", "1"
        ),
    )
    yield "compare-timeline", compare(
        "mlp-fp16", "optimstore-r1", SMALL, "--timeline", "line.json", "--steps", "1",
        keep=("json:out/result.json", "json:line.json"),
    )  # fmt: skip
    yield "compare-sweep", compare(
        "mlp-fp16", "optimstore-r1", SMALL, "--sweep", "flash.channels=1,2,4", "--steps", "1",
        "--target-step", "20 ms", keep=("json:out/sweep.json",),
    )  # fmt: skip
    yield "compare-sweep-two", compare(
        "mlp-fp16", "newport", SMALL, "--sweep", "flash.cell=MLC,TLC", "--sweep",
        "system.devices=1,2", "--steps", "1", keep=("json:out/sweep.json",),
    )  # fmt: skip
    for name, changes in UPDATES.items():
        yield (
            f"compare-update-{name}",
            compare(
                "gpt-small", "optimstore-r1", {**SMALL, **changes}, "--steps", "2", "--seed", "5"
            ),
        )


UPDATES: dict[str, dict[str, object]] = {
    "free": {"pe.dispatch": "free"},
    "double-buffered": {"pe.dispatch": "double_buffered", "flash.retention": "rated"},
    "unprotected": {"pe.protection": "none", "ftl.reservoir_retention": "rated"},
    "on-die-ecc": {
        "pe.protection": "on_die_ecc",
        "pe.ecc_codeword": "1 KiB",
        "pe.ecc_correctable_bits": 8,
        "pe.ecc_rate": "1 GB/s",
        "ftl.reservoir_retention": "1 year",
    },
    "controller-ecc": {"pe.protection": "controller_ecc", "ftl.reservoir_retention": "3 months"},
    "guarded": {
        "pe.randomiser": "die",
        "pe.cipher": "die",
        "pe.cipher_rate": "6.6 GB/s",
        "pe.integrity": "die",
    },
    "parity": {"pe.rain": 4},
    "resume": {"pe.atomicity": "resume"},
    "undo": {"pe.atomicity": "undo"},
    "errors-rate": {"errors.kind": "rate", "errors.rate": 1e-6, "errors.exposure": 4},
    "errors-ecc": {
        "errors.kind": "rate",
        "errors.rate": 1e-5,
        "pe.protection": "on_die_ecc",
        "pe.ecc_codeword": "1 KiB",
        "pe.ecc_correctable_bits": 8,
    },
    "errors-model": {
        "errors.kind": "model",
        "errors.initial_cycles": 20000,
        "errors.initial_days": 30,
        "flash.rated_retention": "3 days",
        "flash.retention": "3 days",
    },
    "fresh": {"ftl.initial": "fresh", "flash.grants": "data"},
    "migrating": {
        "ftl.reservoir_migrate": 1,
        "ftl.reservoir_rotate": 1,
        "ftl.bad_blocks": 0.05,
        "ftl.reservoir_fraction": 0.6,
    },
    "cores": {
        "isp.kind": "cores",
        "isp.cores": 4,
        "isp.frequency": "1.0 GHz",
        "isp.ipc": 0.8,
        "isp.engine": 0,
    },
    "no-processor": {"isp.kind": "none", "pe.kind": "none", "ftl.reservoir_fraction": 0},
    "write-back": {"cache.mode": "write_back", "cache.capacity": "1 MiB"},
    "suspension": {**SUSPEND, "flash.suspend": "program_erase"},
    "program-failures": {"ftl.program_failures": 0.0005},
}

STUDIES = ("formats", "errors")
"""Cases of `ondie study`. Their names and recordings are older than the command."""
SUITES: dict[str, tuple[str, ...]] = {
    "bytes": (), "closed-forms": (), "rates": (), "zero": (), "smart-infinity": (),
    "optimstore": (), "stannis": (), "hypertune": (), "tunnel": (),
    "mqsim": (), "drives": (), "ndpipe": (),
    "formats": ("--steps", "20", "--seeds", "1,2"),
    "errors": ("--steps", "10", "--seeds", "1", "--rates", "1e-6,1e-4"),
}  # fmt: skip


def validations() -> Iterator[tuple[str, Case]]:
    for name, more in SUITES.items():
        argv = ("study" if name in STUDIES else "validate", name, *more)
        # Exit code 1: a check row is outside its tolerance. The rows are recorded all the same.
        yield (
            f"validate-{name}",
            Case((*argv, "--json", "out.json", "--quiet"), ("json:out.json",), codes=(0, 1)),
        )
    yield "validate-smart-infinity-run", Case(
        ("validate", "smart-infinity", "--model", "2.5b", "--drives", "4", "--optimizer",
         "momentum", "--compression", "2", "--json", "out.json", "--quiet"),
        ("json:out.json",), codes=(0, 1),
    )  # fmt: skip


def others() -> Iterator[tuple[str, Case]]:
    out = ("--json", "out.json", "--quiet")
    json_out = ("json:out.json",)
    for device in ("optimstore-r1", "optimstore-r2"):
        yield (
            f"ablation-{device}",
            Case(("ablation", "mlp-fp16", "--device", device, *sets(SMALL), *out), json_out),
        )
    for allocator in ("paper", "equal", "best"):
        yield (
            f"stannis-tune-{allocator}",
            Case(("stannis", "tune", "mobilenetv2", "--allocator", allocator, *out), json_out),
        )
    for allreduce in ("ring", "tree", "star", "best"):
        yield f"stannis-tune-allreduce-{allreduce}", Case(
            ("stannis", "tune", "inceptionv3", "--drives", "newport=4", "--drives", "laguna=3",
             "--hosts", "2", "--allreduce", allreduce, *out), json_out,
        )  # fmt: skip
    yield "stannis-tune-overhead", Case(
        ("stannis", "tune", "nasnet-mobile", "--allocator", "best", "--overhead", "0.1",
         "--method", "local", "--most-batch", "2000", *out), json_out,
    )  # fmt: skip
    yield "stannis-tune-trace", Case(
        ("stannis", "tune", "mobilenetv2-digits", "--host-batch", "64", "--reference",
         "influential", "--margin", "0.1", *out), json_out,
    )  # fmt: skip
    yield (
        "stannis-plan",
        Case(
            ("stannis", "plan", "mobilenetv2", "--private", "500", "--public", "72000", *out),
            json_out,
        ),
    )
    yield "stannis-plan-repeat", Case(
        ("stannis", "plan", "squeezenet", "--drives", "laguna=3", "--private", "100,900,400",
         "--public", "50000", "--levelling", "repeat", *out), json_out,
    )  # fmt: skip
    yield "stannis-tune-loaded", Case(
        ("stannis", "tune", "mobilenetv2", "--drives", "laguna=36", "--batch", "paper",
         "--cores-taken", "6", *out), json_out,
    )  # fmt: skip
    yield "stannis-scale-published", Case(
        ("stannis", "scale", "shufflenet,mobilenetv2", "--drives", "laguna=36", "--batch", "paper",
         "--cores-taken", "2", "--slowdown", "linear", *out), json_out,
    )  # fmt: skip
    yield "stannis-scale", Case(("stannis", "scale", "mobilenetv2,squeezenet", *out), json_out)
    yield "stannis-simulate", Case(("stannis", "simulate", "mobilenetv2", *out), json_out)
    yield "stannis-simulate-load", Case(
        ("stannis", "simulate", "mobilenetv2", "--drives", "newport=6", "--load", "load.csv",
         "--hypertune", "gated", "--jitter", "0.03", "--stragglers", "0.02", "--seed", "4", *out),
        json_out, ("load.csv",),
    )  # fmt: skip
    yield "stannis-simulate-members", Case(
        ("stannis", "simulate", "squeezenet", "--drives", "laguna=6", "--members", "members.csv",
         "--allreduce", "tree", "--no-reading", *out), json_out, ("members.csv",),
    )  # fmt: skip
    for i, rule in enumerate(("proportional", "eq3", "eq3-literal")):
        yield f"stannis-simulate-{rule}", Case(
            ("stannis", "simulate", "mobilenetv2", "--drives", "newport=5", "--draw-load",
             "0.3,60", "--hypertune", ("gated", "papers", "gated")[i], "--batch-rule", rule,
             "--steps", "200", *out), json_out,
        )  # fmt: skip
    for trace in ("gpt-small", "gpt2-124m", "mlp-fp16", "mobilenetv2-digits", "gpt2-124m-synth",
                  "bert-large", "t5-11b", "gpt3-175b", "nasnet-mobile"):  # fmt: skip
        yield f"trace-info-{trace}", Case(("trace", "info", trace, "--json", "-"), ("stdout",))
    for trace, form in (("mixed.csv", "msr"), ("two.csv", "msr"), ("job.log", "fio")):
        yield (
            f"trace-info-{trace}",
            Case(("trace", "info", trace, "--from", form, "--json", "-"), ("stdout",), (trace,)),
        )
    for to, name, more in (
        ("mqsim", "out.trace", ("--out-time-unit", "ns")),
        ("msr", "out.csv", ()),
        ("fio2", "out.fio2", ("--out-wait", "manual")),
        ("fio3", "out.fio3", ("--offset-wrap", "16 MiB")),
    ):
        yield f"trace-convert-{to}", Case(
            ("trace", "convert", "two.csv", name, "--from", "msr", "--to", to, "--side-by-side",
             *more), (f"hash:{name}",), ("two.csv",),
        )  # fmt: skip
    yield "trace-convert-fio-mqsim", Case(
        ("trace", "convert", "job.log", "out.trace", "--from", "fio3", "--to", "mqsim",
         "--out-time-unit", "us", "--drop", "trim,flush", "--limit", "900"),
        ("hash:out.trace",), ("job.log",),
    )  # fmt: skip
    for device in PRESETS:
        yield f"preset-show-{device}", Case(("preset", "show", device, "--json", "-"), ("stdout",))
    yield (
        "preset-show-set",
        Case(("preset", "show", "newport", *sets(SMALL), "--json", "-"), ("stdout",)),
    )
    yield "preset-list", Case(("preset", "list"), ("table",))
    yield "preset-diff", Case(("preset", "diff", "optimstore-r1", "optimstore-r2"), ("table",))


PRESETS = ("gen4-tlc", "laguna", "newport", "optimstore-r1", "optimstore-r2", "smartssd")

CASES: dict[str, Case] = dict(
    itertools.chain(validations(), compares(), replays(), mqsims(), others())
)
"""The long cases come first, so that the processes finish together."""


# --- coverage

NOT_COVERED: dict[str, str] = {
    "--paths": "ndpipe needs a recorded trace that trains a head: tests/timing/test_near_data.py",
    "--device": "drives with a data sheet: validate-drives runs them",
    "ftl.gc_checks": "filled is MQSim's: the cases mqsim-*-quirks set it",
    "ftl.host_order": "polled is MQSim's: the cases mqsim-*-quirks set it",
}
"""Keys with a choice that no case uses, and the reason."""

RUNS = ("compare", "replay", "ablation", "stannis")
"""Commands that use a configuration, and do not only show it."""
OPTIONS = ("--paths", "--format")


def configuration_of(
    case: Case, resolved: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, dict[str, str], dict[str, list[str]]]]:
    """(preset, settings, options) of a case that runs a drive; ``resolved``: known presets."""
    argv = case.argv
    if argv[0] not in RUNS:
        return
    given: dict[str, list[str]] = {}
    for name, value in itertools.pairwise(argv):
        if name.startswith("--"):
            given.setdefault(name, []).append(value)
    pairs = (text.partition("=") for text in given.get("--set", ()))
    settings = {key: value for key, _, value in pairs}
    options = {
        name: [part for text in given.get(name, ()) for part in text.split(",")] for name in OPTIONS
    }
    if argv[0] == "compare" and "--format" not in given:
        options["--format"] = ["fp32"]
    drives = [text.partition("=")[0] for text in given.get("--drives", ())]
    for device in [*given.get("--device", ()), *(d for d in drives if d in resolved)]:
        yield device, settings, options
