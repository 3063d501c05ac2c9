"""Channel wait of pages, computed from the busy intervals of dies, channels and ECC engines.

Owns the means over all operations. Does not own the intervals (the engine's timeline). Source: this
project.

A read waits from the end of its array operation to the start of its data transfer. A write waits
from the end of its ECC encoding to the start of its data transfer; this includes the wait for its
die. The waits of individual operations are not computed, because the mean wait is the difference of
two mean times.
"""

from __future__ import annotations

from ondie.emu.analysis.compare import Run
from ondie.emu.config.config import Config
from ondie.emu.engine.run.system import leaf_classes
from ondie.emu.nand import timing
from ondie.emu.paths.base import UPDATE, Options
from ondie.emu.validate.synthetic_models import model

PARAMS = 1 << 23
INTERVALS = 1 << 18


def waiting_shares(cfg: Config, path: str = "host_offload", op: str = "adam") -> dict[str, float]:
    """Return the fraction of the latency that is spent waiting for the channel, for "reads" and for
    "writes".

    Latency of a read: from the start of its array operation to the last byte on the channel.
    Latency of a write: from the end of its encoding to the end of its program.
    """
    run = Run(path, cfg, model(op, PARAMS), Options(), payload=False, timeline=INTERVALS)
    run.step(0)
    reg = run.system.arrays.reg
    lines = run.system.arrays.line[: int(reg.lines[0])]
    assert not reg.line_drop[0]
    lines = lines[(lines["phase"] == UPDATE) & (lines["end"] > lines["start"])]
    bus0, fifo0 = int(reg.bus0[0]), int(reg.fifo0[0])
    system = run.system
    classes, of_class = leaf_classes(system.devices, system.geometry, system.lanes)
    page_ps = cfg.flash.page_bytes * 10**12 // cfg.flash.bus_bytes_per_s
    found = {}
    for name, kind in (("reads", timing.READ), ("writes", timing.PROGRAM)):
        its = lines[lines["op"] == kind]
        array = its[its["leaf"] < bus0]
        bus = its[(its["leaf"] >= bus0) & (its["leaf"] < fifo0)]
        data = bus[bus["end"] - bus["start"] >= page_ps]  # shorter intervals are commands
        coded = its[of_class[its["leaf"]] == classes.index("ECC")]
        if kind == timing.READ:
            ready, begin, end = array["end"], array["start"], data["end"]
        else:
            ready, begin, end = coded["end"], coded["end"], array["end"]
        # Every operation has the same number of intervals of each kind, so means can be subtracted.
        waited = data["start"].mean() - ready.mean()
        found[name] = float(waited / (end.mean() - begin.mean()))
    return found
