"""On-die update: processing elements at the planes update the weights where they lie (OptimStore).

Owns the order of VPP, BPR, ODC and BPP per stripe and the three dispatch rules. Does not own
register and channel rules (backend/nand.py) or the reservoir's map (backend/mapping.py).
Source: OptimStore (HPCA 2023). lockstep: all dies of a channel wait until each has its gradients;
free: each die loads, reads, computes and programs on its own; double_buffered: a second gradient
register lets the next gradients load meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ondie.emu import rows
from ondie.emu.backend import timing
from ondie.emu.energy import Work
from ondie.emu.isp import pe
from ondie.emu.isp.layout import VALUE_BYTES, Stripes
from ondie.emu.paths.base import PHASES, UPDATE, WEIGHTS_UP, Rows
from ondie.emu.paths.bounds import Bound
from ondie.emu.paths.payload import Reservoir
from ondie.emu.paths.updating import UpdatingPath
from ondie.emu.system import System

STAGED_ROUNDS = 8
"""Rounds of gradients (one stripe per die each) that may wait in the device's DRAM."""
PER_STRIPE = 4  # VPP, BPR, ODC, BPP


@dataclass
class OnDie(UpdatingPath):
    """Update on the flash dies."""

    name: ClassVar[str] = "on_die"
    title: ClassVar[str] = "on the flash dies"

    @property
    def round_trip(self) -> bool:
        """Do pages go through the controller's ECC on their way to the PEs, and what these have
        computed for its parity?"""
        return self.cfg.pe.protection == "controller_ecc"

    def granule(self) -> int:
        """Parameters of a round: a stripe on every die."""
        groups = max(self.geometry.planes // len(self.vectors), 1)
        return self.geometry.page_bytes // VALUE_BYTES * groups * self.geometry.dies

    def period(self) -> int:
        return self.granule() * self.geometry.pages

    def lay_out(self) -> None:
        self.stripes = tuple(Stripes.of(s, self.vectors, self.geometry) for s in self.shards)

    def missing(self) -> str | None:
        if self.cfg.pe.kind == "none":
            return "no processing elements on the dies (pe.kind = none)"
        if self.round_trip and self.options.weights_up != "fp32":
            return (
                "pe.protection = controller_ecc: the controller decodes whole pages; "
                "weights leave the dies as fp32"
            )
        if self.stripes[0].groups < 1:
            return (
                f"{len(self.vectors)} vectors ({', '.join(self.vectors)}) do not fit the "
                f"{self.geometry.planes} planes of a die"
            )
        # One block per die must be free of valid super-pages for the next program.
        room = (self.geometry.reservoir_blocks - 1) * self.geometry.pages * self.geometry.dies
        need = max(s.count for s in self.stripes)
        if need > room:
            gb = self.geometry.super_page_bytes / 1e9
            return (
                f"states of {self.trace.n_params:,} parameters take {need * gb:.4g} GB of "
                f"super-pages per device, the reservoir has {max(room, 0) * gb:.4g} GB "
                f"(ftl.reservoir_fraction = {self.cfg.ftl.reservoir_fraction})"
            )
        return None

    def system(self, payload: bool, timeline: int) -> System:
        return System(
            self.cfg,
            PHASES,
            reservoir_super_pages=max(s.count for s in self.stripes),
            payload=payload,
            timeline=timeline,
            pairs=self.options.pairs,
        )

    def fill(self, system: System) -> None:
        for s in self.stripes:
            system.fill_reservoir(s.shard.device, 0, s.count)

    def follow(self, system: System) -> Reservoir:
        return Reservoir(system, self.stripes, self.compute)

    def work(self, steps: int) -> Work:
        applied = self.applied(steps)
        values = sum(s.count * s.params for s in self.stripes) * applied
        done = pe.passes(self.trace.op, self.coupled_decay)
        return Work(
            adds=values * sum(p.adds for p in done),
            multiplies=values * sum(p.multiplies for p in done),
            register_bits=values * 8 * VALUE_BYTES * sum(p.reads + p.writes for p in done),
            host_dram_bits=8 * (VALUE_BYTES + self.up_bytes) * self.trace.n_params * applied,
        )

    def update(self, out: Rows, step: int, segments: np.ndarray) -> Iterator[np.ndarray]:
        yield from self._update(out, int(segments[-1]))
        yield from self.weights_up(out, out.fence(UPDATE))

    def _rounds(self, first: int) -> dict[str, np.ndarray]:
        """All rounds, the devices in turn: device, number on it, dies in it (fewer in a device's
        last), id of its first row, and of the first rows one and STAGED_ROUNDS rounds before (-1:
        none)."""
        dies = self.geometry.dies
        count = np.array([s.count for s in self.stripes], np.int64)
        rounds = -(-count // dies)
        k, dev = np.divmod(np.arange(rounds.max() * len(count)), len(count))
        keep = k < rounds[dev]
        k, dev = k[keep], dev[keep]
        width = np.minimum(dies, count[dev] - k * dies)
        size = 1 + PER_STRIPE * width
        base = first + np.cumsum(size) - size
        before, staged = np.full((2, len(k)), -1, np.int64)
        for d in range(len(count)):
            mine = np.flatnonzero(dev == d)
            before[mine[1:]] = base[mine[:-1]]
            staged[mine[STAGED_ROUNDS:]] = base[mine[:-STAGED_ROUNDS]]
        return {
            "k": k, "dev": dev, "width": width, "base": base, "before": before, "staged": staged
        }  # fmt: skip

    def _update(self, out: Rows, after: int) -> Iterator[np.ndarray]:
        """Rounds of one stripe per die: a row for the round's gradients on their way to the
        device's DRAM, then VPP, BPR, ODC, BPP for every die."""
        rounds = self._rounds(out.next)
        batch = max(rows.MAX_CHUNK // (1 + PER_STRIPE * self.geometry.dies), 1)
        for at in range(0, len(rounds["k"]), batch):
            part = {name: column[at : at + batch] for name, column in rounds.items()}
            columns = self._columns(part, after)
            out.add(len(columns["lpn"]), **columns)
            if out.full():
                yield out.take()

    def _columns(self, rounds: dict[str, np.ndarray], after: int) -> dict[str, np.ndarray]:
        """Plan columns of some rounds. Rows of a round: its gradients, then all VPP, BPR, ODC,
        BPP."""
        g = self.geometry
        dies, channels, ways = g.dies, g.channels, g.ways
        size = 1 + PER_STRIPE * rounds["width"]
        rnd, dev, width, base, before, staged = (
            np.repeat(rounds[name], size)
            for name in ("k", "dev", "width", "base", "before", "staged")
        )
        at = np.arange(len(rnd)) - np.repeat(np.cumsum(size) - size, size)
        load = at == 0
        kind, die = np.divmod(at - 1, width)
        kind[load], die[load] = -1, 0
        vpp, bpr, odc, bpp = (kind == i for i in range(PER_STRIPE))
        row = [base + 1 + i * width + die for i in range(PER_STRIPE)]  # this stripe's four rows
        previous = [  # the four rows of the die's stripe before; that round had every die
            np.where(before < 0, -1, before + 1 + i * dies + die) for i in range(PER_STRIPE)
        ]
        after0, after1 = np.full((2, len(rnd)), -1, np.int64)
        after0[load] = np.where(staged < 0, after, staged + dies)[load]  # last VPP back then
        dispatch = self.cfg.pe.dispatch
        if dispatch == "lockstep":
            # Gradients go to the dies of a channel in turn; the first waits for the whole channel.
            head = die < channels
            last_before = np.where(
                before < 0, -1, before + 1 + 3 * dies + (ways - 1) * channels + die % channels
            )
            after0[vpp] = np.where(head, base, row[0] - channels)[vpp]
            after1[vpp] = np.where(head, last_before, previous[3])[vpp]
            # A first die that is slower than the last one holds them too: its program comes first.
            head_before = np.where(before < 0, -1, before + 1 + 3 * dies + die % channels)
            after1[bpr] = head_before[bpr]
            last_way = np.minimum(ways - 1, (width - 1 - die % channels) // channels)
            after0[bpr] = (base + 1 + last_way * channels + die % channels)[bpr]
        elif dispatch == "free":
            after0[vpp] = base[vpp]
            after1[vpp] = previous[3][vpp]
            after0[bpr] = row[0][bpr]
        else:
            after0[vpp] = base[vpp]
            after1[vpp] = previous[2][vpp]
            after0[bpr] = np.where(before < 0, after, previous[3])[bpr]
        after0[odc] = row[1][odc]
        after1[odc] = row[0][odc]
        after0[bpp] = row[2][bpp]
        s = self.stripes[0]
        gradient, stripe = s.groups * g.page_bytes, s.planes * g.page_bytes
        starts = np.array([x.shard.start for x in self.stripes])
        ops = np.array([timing.VPP, timing.BPR, timing.ODC, timing.BPP])
        pe_ps = pe.stripe_ps(self.cfg, self.trace.op, self.coupled_decay)
        ecc_ps = pe.ecc_ps(self.cfg, s.planes)
        sent = bpr | odc if self.round_trip else bpr
        return {
            "device": dev,
            "resource": np.where(load, rows.DMA_DOWN, rows.DIE),
            "kind": ops[kind],
            "phase": np.full(len(rnd), UPDATE),
            "lpn": np.where(load, starts[dev] + rnd * dies * s.params, rnd * dies + die),
            "tag": np.where(load, width * s.params, 0),
            "bytes_in": np.where(
                load, width * gradient, np.where(vpp, gradient, np.where(bpp, stripe, 0))
            ),
            "bytes_out": np.where(sent, stripe, 0),
            "array_ps": np.where(odc, pe_ps, np.where(bpr | bpp, ecc_ps, 0)),
            "after0": after0,
            "after1": after1,
        }

    def weights_up(self, out: Rows, after: int) -> Iterator[np.ndarray]:
        """Every new weight page is read out, the devices in turn: array, channel, DRAM, link."""
        values = self.stripes[0].params
        piece = rows.MAX_CHUNK // len(self.stripes)
        for a in range(0, max(s.count for s in self.stripes), piece):
            for s in self.stripes:
                n = min(piece, s.count - a)
                if n > 0:
                    out.add(
                        n,
                        device=s.shard.device,
                        resource=rows.DIE,
                        kind=timing.READ,
                        phase=WEIGHTS_UP,
                        lpn=np.arange(a, a + n),
                        bytes_out=values * self.up_bytes,
                        array_ps=pe.ecc_ps(self.cfg, s.groups),
                        after0=after,
                    )
            if out.full():
                yield out.take()

    def bound(self, step: int) -> Bound:
        """Stripes x stripe time; with free dispatch the channel's gradient loads may be slower."""
        f = self.cfg.flash
        g = self.geometry
        s = max(self.stripes, key=lambda x: x.count)
        command = f.t_command_ps / 1e12
        load = s.groups * (g.page_bytes / f.bus_bytes_per_s + command)
        compute = pe.stripe_ps(self.cfg, self.trace.op, self.coupled_decay) / 1e12
        array = f.t_read_ps / 1e12 + compute + f.t_program_ps / 1e12
        array += (2 * s.planes + 1) * command + 2 * pe.ecc_ps(self.cfg, s.planes) / 1e12
        trip = 0.0  # a stripe on the channel, to the controller's ECC and back, and for its parity
        if self.round_trip:
            trip = 3 * s.planes * g.page_bytes / f.bus_bytes_per_s + s.planes * command
            array += s.planes * (self.cfg.ecc.decode_ps + self.cfg.ecc.encode_ps) / 1e12
        whole = -(-s.count // g.dies)
        # The reservoir was filled with as many stripes; blocks entered from there on are erased.
        before = self.applied(step) + 1
        opened = -(-(before + 1) * whole // g.pages) - -(-before * whole // g.pages)
        erases = opened * f.t_erase_ps / 1e12 if self.cfg.ftl.initial == "steady" else 0.0
        dispatch = self.cfg.pe.dispatch
        ways = g.ways
        if dispatch == "lockstep":
            # The channel also hands the dies their read and program commands one after the other.
            stagger = 2 * s.planes * (ways - 1) * command
            stripe, name = array + ways * (load + trip) + stagger, "dies in lockstep"
        elif dispatch == "free":
            stripe, name = max((array + load + trip, "dies"), (ways * (load + trip), "channels"))
        else:
            stripe, name = max((array + trip, "dies"), (ways * (load + trip), "channels"))
        rate = self.cfg.link.down_bytes_per_s
        if self.cfg.link.uplink_bytes_per_s:
            rate = min(rate, self.cfg.link.uplink_bytes_per_s // self.cfg.system.devices)
        link = s.groups * g.page_bytes * g.dies / rate
        dram = 2 * s.groups * g.page_bytes * g.dies / self.cfg.dram.bandwidth_bytes_per_s
        stripe, name = max((stripe, name), (link, "link down"), (dram, "DRAM"))
        text = (
            f"{whole:,} stripes per die x {stripe * 1e6:.4g} us "
            f"(tR {f.t_read_ps / 1e6:.4g} + PE {compute * 1e6:.4g} + tPROG "
            f"{f.t_program_ps / 1e6:.4g} + gradient {load * 1e6:.4g}"
            f"{f' x {ways} dies' if dispatch == 'lockstep' else ''} + commands)"
        )
        text += f" + {opened} erases x {f.t_erase_ps / 1e9:.4g} ms"
        return Bound(whole * stripe + erases, name, text)
