"""How long pages wait for their channel: from the intervals of dies, channels and ECC engines.

Owns the sums. Does not own the intervals (events.line). Source: own.

A read waits from the end of its array operation until its data leave; a write from the end of its
encoding until its data enter, which is also the wait for its die. Operations of one kind are not
told apart: sums over all of them need not know which begins where.
"""

from __future__ import annotations

from ondie.emu.analysis.compare import Run
from ondie.emu.config.config import Config
from ondie.emu.nand import timing
from ondie.emu.paths.base import UPDATE, Options
from ondie.emu.validate.synthetic_models import model

PARAMS = 1 << 23
INTERVALS = 1 << 18


def waiting_shares(cfg: Config, path: str = "host_offload", op: str = "adam") -> dict[str, float]:
    """Share of waiting in the latency of reads and of writes, from the start of the array to the
    last byte out, or from the encoded page to the end of its program."""
    run = Run(path, cfg, model(op, PARAMS), Options(), payload=False, timeline=INTERVALS)
    run.step(0)
    reg = run.system.arrays.reg
    lines = run.system.arrays.line[: int(reg.lines[0])]
    assert not reg.line_drop[0]
    lines = lines[(lines["phase"] == UPDATE) & (lines["end"] > lines["start"])]
    bus0, fifo0 = int(reg.bus0[0]), int(reg.fifo0[0])
    page_ps = cfg.flash.page_bytes * 10**12 // cfg.flash.bus_bytes_per_s
    found = {}
    for name, kind in (("reads", timing.READ), ("writes", timing.PROGRAM)):
        its = lines[lines["op"] == kind]
        array = its[its["leaf"] < bus0]
        bus = its[(its["leaf"] >= bus0) & (its["leaf"] < fifo0)]
        data = bus[bus["end"] - bus["start"] >= page_ps]  # the others are commands
        coder = [run.system.leaf_name(int(leaf))[1].startswith("ECC") for leaf in its["leaf"]]
        coded = its[coder]
        if kind == timing.READ:
            ready, begin, end = array["end"], array["start"], data["end"]
        else:
            ready, begin, end = coded["end"], coded["end"], array["end"]
        # Every operation has as many of each: they are compared by their means.
        waited = data["start"].mean() - ready.mean()
        found[name] = float(waited / (end.mean() - begin.mean()))
    return found
