"""On-die update: processing elements at the planes update the weights in place (OptimStore).

Owns the order of VPP, BPR, ODC and BPP per stripe and the three dispatch rules. Does not own
register and channel rules (nand/channel.py), the reservoir's map (ftl/reservoir.py), the choice of
stripes that move to another die (wear_leveling.py), or the additional steps of a stripe that
replace the controller's protection (protection.py).
Source: OptimStore (HPCA 2023). lockstep: all dies of a channel wait until each has its gradients;
free: each die loads, reads, computes and programs independently; double_buffered: a second gradient
register lets the next gradients load concurrently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from ondie.emu.compute import pe
from ondie.emu.compute import pe_bus as die_bus
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.run.system import System
from ondie.emu.ftl import reservoir
from ondie.emu.nand import timing
from ondie.emu.paths.base import PHASES, UPDATE, WEIGHTS_UP, Rows
from ondie.emu.paths.closed_form import Bound
from ondie.emu.paths.layout import formats
from ondie.emu.paths.layout.regions import Stripes
from ondie.emu.paths.layout.stripe_map import Homes
from ondie.emu.paths.on_die import uneven_rounds, wear_leveling
from ondie.emu.paths.on_die.devices import Devices
from ondie.emu.paths.on_die.protection import (
    CHAIN,
    COMPUTE,
    FETCH,
    GRADIENT,
    JOINS,
    KEEP,
    KIND,
    PROGRAM,
    SENSE,
    STORE,
    Guarded,
    steps,
)
from ondie.emu.paths.on_die.registers import Reservoir
from ondie.emu.paths.on_die.rounds import Table, all_rounds
from ondie.emu.paths.statement import Share, Work
from ondie.emu.paths.update_path import UpdatingPath


@dataclass
class OnDie(UpdatingPath):
    """Update on the flash dies."""

    drives: System = field(init=False, repr=False)
    """System that holds the states; its wear determines which stripes move."""

    name: ClassVar[str] = "on_die"
    title: ClassVar[str] = "on the flash dies"

    @property
    def round_trip(self) -> bool:
        """True if pages pass the controller's ECC before the PEs, and results pass it for their
        parity."""
        return self.cfg.pe.protection == "controller_ecc"

    @property
    def compute_ps(self) -> int:
        """Time of a stripe's passes and of the die's other work between sense and program, without
        its ECC, ps."""
        time, _ = self.stripe_ps
        return time + pe.guarding_ps(self.cfg, self.stripes[0].planes)

    @property
    def stripe_ps(self) -> tuple[int, int]:
        """(time of a stripe's passes, part of that time on the die's bus), ps; see pe.stripe_ps."""
        s, op = self.stripes[0], self.trace.op
        return pe.stripe_ps(self.cfg, op, self.coupled_decay, s.groups, s.dtype.itemsize)

    def granule(self) -> int:
        """Return the parameters of a round: one stripe on every die."""
        groups = max(self.geometry.planes // len(self.vectors), 1)
        width = self.stored.vectors[0].dtype.itemsize
        return self.geometry.page_bytes // width * groups * self.geometry.dies

    def period(self) -> int:
        return self.granule() * self.geometry.pages

    def unsampled(self) -> str | None:
        if not self.cfg.pe.rain:
            return None
        return "parities go to the dies in turn, and fill blocks of all only after many periods"

    def lay_out(self) -> None:
        self.steps = steps(self.cfg)
        w, g = self.stored.vectors[0].dtype, self.stored.gradient.dtype
        self.stripes = tuple(
            Stripes.of(s, self.vectors, self.geometry, dtype=w, gradient=g) for s in self.shards
        )

    @cached_property
    def guarded(self) -> tuple[Guarded, ...]:
        """Protected super-pages of each device."""
        return tuple(Guarded.of(self.cfg, s, self.geometry.dies) for s in self.stripes)

    @cached_property
    def homes(self) -> tuple[Homes, ...]:
        """Stripe map of each device."""
        return tuple(Homes(s.count, self.geometry.dies) for s in self.stripes)

    @cached_property
    def good_blocks(self) -> np.ndarray:
        """Mask of good blocks in each die's reservoir, bool[devices x dies, blocks]."""
        return ~reservoir.bad_blocks(self.cfg, self.geometry, len(self.shards))

    @property
    def devices(self) -> Devices:
        """All devices, for the modules that add rows of this update."""
        return Devices(
            self.cfg, self.geometry, self.steps, self.stripes, self.homes, self.guarded,
            self.good_blocks, self.compute_ps, self.round_trip,
        )  # fmt: skip

    @property
    def scanned_planes(self) -> int:
        """Planes of a die whose out-of-band data must be scanned to locate a super-page."""
        turns = self.cfg.ftl.reservoir_rotate > 0
        return self.geometry.planes if turns else self.stripes[0].planes

    @property
    def migrates(self) -> bool:
        """True if stripes move between unequally worn dies. False with parity over dies, which
        binds stripes to their dies, and with commit records per die."""
        plain = self.steps == (GRADIENT, SENSE, COMPUTE, PROGRAM)
        guarded = self.cfg.pe.rain or self.cfg.pe.atomicity != "none"
        return self.cfg.ftl.reservoir_migrate > 0 and plain and not guarded

    @property
    def super_pages(self) -> int:
        """Super-pages of a device in the map: about twice the initial number if stripes may
        move."""
        first = max(x.super_pages for x in self.guarded)
        if not self.migrates:
            return first
        each = -(-first // self.geometry.dies)
        return (2 * each + 1) * self.geometry.dies

    def unstorable(self) -> str | None:
        """Return the reason why the PEs cannot process the format, or None. They process pages
        value by value, in parallel in the planes of a die."""
        f = formats.FORMATS[self.options.format]
        if f.name == "fp32" or self.cfg.pe.kind == "none":
            return None
        if f.codes or f.w != f.state:
            return (
                "a page of states holds more or fewer values than one of weights; the planes of a "
                "super-page hold as many each"
            )
        if f.random:
            return "nothing on the dies draws random bits"
        if not self.cfg.pe.narrow_values:
            return (
                "pe.narrow_values = 0: the elements take 32-bit values alone, as published; 1 or 2 "
                "are right for ones that widen and round 16-bit values"
            )
        return None

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
        # One block per die must have no valid super-page, for the next program.
        good = int(self.good_blocks.sum(axis=1).min())
        room = (good - 1) * self.geometry.pages * self.geometry.dies
        need = max(x.reserved for x in self.guarded)
        if need > room:
            gb = self.geometry.super_page_bytes / 1e9
            return (
                f"states of {self.trace.n_params:,} parameters take {need * gb:.4g} GB of "
                f"super-pages per device, the reservoir has {max(room, 0) * gb:.4g} GB "
                f"(ftl.reservoir_fraction = {self.cfg.ftl.reservoir_fraction}"
                f"{f', ftl.bad_blocks = {bad}' if (bad := self.cfg.ftl.bad_blocks) else ''})"
            )
        return None

    def system(self, payload: bool, timeline: int) -> System:
        return System(
            self.cfg,
            PHASES,
            reservoir_super_pages=self.super_pages,
            reservoir_planes=self.stripes[0].planes + self.stripes[0].groups * self.stripes[0].kept,
            payload=payload,
            timeline=timeline,
            pairs=self.options.pairs,
        )

    def fill(self, system: System) -> None:
        self.drives = system
        for s in self.stripes:
            system.fill_reservoir(s.shard.device, 0, s.count)

    def follow(self, system: System) -> Reservoir:
        return Reservoir(system, self.stripes, self.homes, self.compute, self.guarded)

    def delivered(self) -> np.ndarray | None:
        sent = super().delivered()
        if sent is None or self.arithmetic is None:
            return None
        return self.arithmetic.shown(sent)

    def notes(self) -> list[str]:
        f = self.stored.format
        if f.name == "fp32":
            return []
        if f.g == f.w:
            n = self.cfg.pe.narrow_values
            return [
                f"format {f.name}: elements that widen {n} value(s) a cycle, keep them in FP32 "
                "from the first pass to the last, and round them then (not published)"
            ]
        return [f"format {f.name}: elements that widen gradients as they use them (not published)"]

    def work(self, steps: int) -> Work:
        applied = self.applied(steps)
        values = sum(s.count * s.params for s in self.stripes) * applied
        width, gradient = (
            s.itemsize for s in (self.stripes[0].dtype, self.stripes[0].gradient_dtype)
        )
        done = pe.passes(self.trace.op, self.coupled_decay)
        crossing = sum(die_bus.crossing(self.trace.op, self.coupled_decay))
        pages = sum(s.count * s.planes for s in self.stripes) * applied
        twice = 2 * pages * 8 * self.geometry.page_bytes  # when read and when programmed
        streamed = pages * 8 * self.geometry.page_bytes * pe.extra_passes(self.cfg)
        return Work(
            pe_cipher_bits=twice if self.cfg.pe.cipher == "die" else 0,
            adds=values * sum(p.adds for p in done),
            multiplies=values * sum(p.multiplies for p in done),
            register_bits=values * 8 * width * sum(p.reads + p.writes for p in done) + 2 * streamed,
            die_bus_bits=values * 8 * width * crossing,
            host_dram_bits=8 * (gradient + self.up_bytes) * self.trace.n_params * applied,
        )

    def share(self, steps: int) -> Share:
        return wear_leveling.share(self.devices, self.applied(steps) / steps, self.migrates)

    def update(self, out: Rows, step: int, segments: np.ndarray) -> Iterator[np.ndarray]:
        after = int(segments[-1])
        if self.migrates:
            worn = self.drives.arrays.worn
            after = wear_leveling.plan(self.devices, worn, self.super_pages, out, after)
        if any(homes.moved for homes in self.homes):
            zeros = tuple(np.zeros(self.geometry.dies, np.int64) for _ in self.homes)
            yield from uneven_rounds.update(self.devices, out, after, zeros)
        else:
            yield from self._update(out, after)
        if self.guarded[0].commits:
            self.commit(out)
        yield from self.weights_up(out, out.fence(UPDATE))

    def _update(self, out: Rows, after: int) -> Iterator[np.ndarray]:
        """Yield rounds of one stripe per die: a row for the transfer of the round's gradients to
        the device's DRAM, then each step for every die, then the completed parities."""
        rounds = all_rounds(out.next, self.guarded, len(self.steps))
        batch = max(rows.MAX_CHUNK // (1 + (len(self.steps) + 1) * self.geometry.dies), 1)
        for at in range(0, len(rounds["k"]), batch):
            part = {name: column[at : at + batch] for name, column in rounds.items()}
            columns = self._columns(part, after)
            out.add(len(columns["lpn"]), **columns)
            if out.full():
                yield out.take()

    def _columns(self, rounds: dict[str, np.ndarray], after: int) -> dict[str, np.ndarray]:
        """Return plan columns of ``rounds``. Rows of a round: its gradients, then each step for all
        dies, then parities."""
        t = Table.of(rounds, self.steps, self.geometry.dies)
        t.after0[t.load] = np.where(t.staged < 0, after, t.staged + self.geometry.dies)[t.load]
        sequence = [step for step in self.steps if step not in JOINS]
        for step, earlier in zip(sequence[1:], sequence, strict=False):
            t.after0[t.mask[step]] = t.row[earlier][t.mask[step]]
        odc = t.mask[COMPUTE]
        t.after1[odc] = t.row[sequence[0]][odc]
        self.schedule(t, after)
        s = self.stripes[0]
        gradient, stripe = s.gradient_bytes, s.planes * self.geometry.page_bytes
        ecc_ps = pe.ecc_ps(self.cfg, s.planes)
        coded = t.mask[SENSE] | t.mask.get(PROGRAM, False)
        resource = np.where(t.load, rows.DMA_DOWN, rows.DIE)
        kind = np.full(len(t.load), timing.BESIDE)
        first = np.array([x.shard.start for x in self.stripes])[t.dev]
        lpn = np.where(t.load, first + t.stripe * s.params, t.stripe)
        bytes_in = np.where(t.load, t.width * gradient, np.where(t.made, stripe, 0))
        bytes_out = np.zeros_like(bytes_in)
        for step, its in t.mask.items():
            if step in JOINS:
                resource[its] = rows.JOIN
                continue
            kind[its] = KIND[step]
            if step in (GRADIENT, KEEP):
                bytes_in[its] = gradient
            elif step in (PROGRAM, STORE):
                bytes_in[its] = stripe
            elif step != COMPUTE or self.round_trip:  # out for its parity
                bytes_out[its] = stripe
        if KEEP in t.mask:  # sensed with the states
            kind[t.mask[SENSE]] = timing.RECALL
            bytes_out[t.mask[SENSE]] += gradient
        if CHAIN in t.mask:
            lpn[t.made] = self._chain(t)
        return {
            "device": t.dev,
            "resource": resource,
            "kind": kind,
            "phase": np.full(len(kind), UPDATE),
            "lpn": lpn,
            "tag": np.where(t.load, t.width * s.params, 0),
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
            "array_ps": np.where(odc, self.compute_ps, np.where(coded, ecc_ps, 0)),
            "after0": t.after0,
            "after1": t.after1,
        }

    def schedule(self, t: Table, after: int) -> None:
        """Set the dependencies of gradient load and stripe sense by the dispatch rule."""
        channels, ways = self.geometry.channels, self.geometry.ways
        vpp, bpr = t.mask[GRADIENT], t.mask[SENSE]
        last = STORE if STORE in t.mask else PROGRAM
        dispatch = self.cfg.pe.dispatch
        if dispatch == "lockstep":
            # Gradients go to the dies of a channel in turn; the first waits for the whole channel.
            head, lane = t.die < channels, t.die % channels
            t.after0[vpp] = np.where(head, t.base, t.row[GRADIENT] - channels)[vpp]
            last_before = t.earlier(last, (ways - 1) * channels + lane)
            t.after1[vpp] = np.where(head, last_before, t.previous(last))[vpp]
            # The sense also waits for the previous program of the channel's first die.
            t.after1[bpr] = t.earlier(last, lane)[bpr]
            t.after0[bpr] = self._last_way(t, GRADIENT)[bpr]
        elif dispatch == "free":
            t.after0[vpp] = t.base[vpp]
            t.after1[vpp] = t.previous(last)[vpp]
        else:
            t.after0[vpp] = t.base[vpp]
            t.after1[vpp] = t.previous(COMPUTE)[vpp]
            t.after0[bpr] = np.where(t.before < 0, after, t.previous(last))[bpr]
            if CHAIN in t.mask:  # gradients wait for parities, which wait for free registers
                t.after1[bpr] = t.row[GRADIENT][bpr]

    def _last_way(self, t: Table, step: int) -> np.ndarray:
        """Return the row of a step of the last die on each die's channel, in its round."""
        channels, lane = self.geometry.channels, t.die % self.geometry.channels
        way = np.minimum(self.geometry.ways - 1, (t.width - 1 - lane) // channels)
        return t.row[step] - t.die + way * channels + lane

    def _chain(self, t: Table) -> np.ndarray:
        """Chain each fetched stripe to the previous one under its parity; the parity is programmed
        after the last stripe. Return the super-pages of the parities."""
        its = t.mask[CHAIN]
        members = self.guarded[0].members
        before = np.where(t.die > 0, t.row[CHAIN] - 1, t.earlier(CHAIN, self.geometry.dies - 1))
        t.after0[its] = t.row[FETCH if FETCH in t.mask else COMPUTE][its]
        t.after1[its] = np.where(t.stripe % members > 0, before, -1)[its]
        t.after1[t.load] = t.staged_end[t.load]  # parities also wait in DRAM
        counts = np.array([x.count for x in self.guarded])[t.dev]
        number = t.parity + t.at - 1 - len(self.steps) * t.width
        final = np.minimum((number + 1) * members, counts) - 1  # its last stripe
        chain = t.row[CHAIN] - t.die + final - t.round * self.geometry.dies
        t.after0[t.made] = chain[t.made]
        offsets = np.cumsum([0, *(len(x.parity) for x in self.guarded)])
        every = np.concatenate([x.parity for x in self.guarded])
        return every[(number + offsets[t.dev])[t.made]]

    def commit(self, out: Rows, done: Sequence[frozenset[int]] = ()) -> None:
        """Add the program of a commit record on every die, except the records of each device in
        ``done``."""
        after = out.fence(UPDATE)
        for s, guarded in zip(self.stripes, self.guarded, strict=True):
            lpn = guarded.records + np.arange(self.geometry.dies)
            lpn = lpn[[sp not in done[s.shard.device] for sp in lpn.tolist()]] if done else lpn
            out.add(
                len(lpn),
                device=s.shard.device,
                resource=rows.DIE,
                kind=timing.BESIDE,
                phase=UPDATE,
                lpn=lpn,
                bytes_in=self.geometry.page_bytes,
                after0=after,
            )

    def weights_up(self, out: Rows, after: int) -> Iterator[np.ndarray]:
        """Yield reads of every new weight page to the host."""
        s = self.stripes[0]
        yield from self.read_out(out, after, WEIGHTS_UP, s.groups, s.params * self.up_bytes)

    def read_out(
        self,
        out: Rows,
        after: int,
        phase: int,
        pages: int,
        size: int,
        which: Sequence[np.ndarray] | None = None,
    ) -> Iterator[np.ndarray]:
        """Yield reads of ``pages`` pages of every super-page, or of ``which`` on each device, sent
        to the host as ``size`` bytes, the devices in turn: array, the die's decoder if any,
        channel, DRAM, link."""
        which = which or [h.super_pages(0, h.count) for h in self.homes]
        piece = rows.MAX_CHUNK // len(self.stripes)
        for a in range(0, max(map(len, which)), piece):
            for s, its in zip(self.stripes, which, strict=True):
                n = min(piece, len(its) - a)
                if n > 0:
                    out.add(
                        n,
                        device=s.shard.device,
                        resource=rows.DIE,
                        kind=timing.READ,
                        phase=phase,
                        lpn=its[a : a + n],
                        bytes_out=size,
                        array_ps=pe.ecc_ps(self.cfg, pages),
                        after0=after,
                    )
            if out.full():
                yield out.take()

    def _moves(self, s: Stripes) -> float:
        """Return the channel time of a stripe, excluding its gradient, seconds."""
        f = self.cfg.flash
        times = float(sum(step in (FETCH, STORE) for step in self.steps))
        if self.cfg.pe.rain:
            times += 1 / (self.cfg.pe.rain - 1)
        if self.round_trip:  # to the controller's ECC and back, and for its parity
            times += 3
        return times * s.planes * (f.page_bytes / f.bus_bytes_per_s + f.t_command_ps / 1e12)

    def _stripe_s(self, s: Stripes, array: float, load: float) -> tuple[float, str]:
        """Return (seconds from one stripe of a die to the next, bottleneck)."""
        f, ways = self.cfg.flash, self.geometry.ways
        moved = self._moves(s)
        if self.cfg.pe.rain:
            array += f.t_program_ps / 1e12 / (self.cfg.pe.rain - 1)
        channels = ways * (load + moved), "channels"
        if self.cfg.pe.dispatch == "lockstep":
            # The channel also hands the dies their read and program commands one after the other.
            stagger = 2 * s.planes * (ways - 1) * f.t_command_ps / 1e12
            return array + channels[0] + stagger, "dies in lockstep"
        if self.cfg.pe.dispatch == "free":
            return max((array + load + moved, "dies"), channels)
        return max((array + moved, "dies"), channels)

    def bound(self, step: int) -> Bound:
        """Return the bound: stripes x stripe time; with free dispatch the channel's gradient loads
        may be slower."""
        f = self.cfg.flash
        g = self.geometry
        s = max(self.stripes, key=lambda x: x.count)
        command = f.t_command_ps / 1e12
        load = s.gradient_bytes / f.bus_bytes_per_s + s.groups * command
        compute = self.compute_ps / 1e12
        _, crossing = self.stripe_ps
        over = f", {crossing / 1e6:.4g} of it over the die's bus," if crossing else ""
        array = f.t_read_ps / 1e12 + compute + f.t_program_ps / 1e12
        array += (2 * s.planes + 1) * command + 2 * pe.ecc_ps(self.cfg, s.planes) / 1e12
        if self.round_trip:
            array += s.planes * (self.cfg.ecc.decode_ps + self.cfg.ecc.encode_ps) / 1e12
        whole = -(-s.count // g.dies)
        # The reservoir was filled with as many stripes; blocks entered from there on are erased.
        before = self.applied(step) + 1
        opened = -(-(before + 1) * whole // g.pages) - -(-before * whole // g.pages)
        erases = opened * f.t_erase_ps / 1e12 if self.cfg.ftl.initial == "steady" else 0.0
        stripe, name = self._stripe_s(s, array, load)
        rate = self.cfg.link.down_bytes_per_s
        if self.cfg.link.uplink_bytes_per_s:
            rate = min(rate, self.cfg.link.uplink_bytes_per_s // self.cfg.system.devices)
        link = s.gradient_bytes * g.dies / rate
        dram = 2 * s.gradient_bytes * g.dies / self.cfg.dram.bandwidth_bytes_per_s
        stripe, name = max((stripe, name), (link, "link down"), (dram, "DRAM"))
        text = (
            f"{whole:,} stripes per die x {stripe * 1e6:.4g} us "
            f"(tR {f.t_read_ps / 1e6:.4g} + PE {compute * 1e6:.4g}{over} + tPROG "
            f"{f.t_program_ps / 1e6:.4g} + gradient {load * 1e6:.4g}"
            f"{f' x {g.ways} dies' if self.cfg.pe.dispatch == 'lockstep' else ''} + commands)"
        )
        if moved := self._moves(s):
            text += f", of its stripe {moved * 1e6:.4g} us more over the channel"
        text += f" + {opened} erases x {f.t_erase_ps / 1e9:.4g} ms"
        return Bound(whole * stripe + erases, name, text)
