"""On-die update: processing elements at the planes update the weights in place (OptimStore).

Owns the order of VPP, BPR, ODC and BPP per stripe and the three dispatch rules. Does not own
register and channel rules (nand/channel.py), the reservoir's map (ftl/reservoir.py), the choice of
stripes to move to another die (wear_leveling.py), or the additional steps of a stripe that replace
the controller's protection (protection.py).
Source: OptimStore (HPCA 2023). lockstep: a die senses only when all dies of its channel have their
gradients. free: each die loads, reads, computes and programs independently. double_buffered: a
second gradient register of each die concurrently loads the next gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from ondie.emu.compute import pe, pe_bus
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.run.system import System
from ondie.emu.ftl import reservoir
from ondie.emu.nand import timing
from ondie.emu.paths.base import PHASES, UPDATE, WEIGHTS_UP, Rows
from ondie.emu.paths.closed_form import Bound, pe_passes_s
from ondie.emu.paths.layout import formats
from ondie.emu.paths.layout.regions import Stripes
from ondie.emu.paths.layout.stripe_map import Homes
from ondie.emu.paths.on_die import uneven_rounds, wear_leveling
from ondie.emu.paths.on_die.devices import Devices, channel_s, stripe_s
from ondie.emu.paths.on_die.protection import (
    CHAIN,
    COMPUTE,
    FETCH_STEP,
    GRADIENT,
    JOIN_STEPS,
    KEEP_STEP,
    KIND,
    PROGRAM_STEP,
    SENSE,
    STORE_STEP,
    Guarded,
    steps,
    without_ecc,
)
from ondie.emu.paths.on_die.registers import Reservoir
from ondie.emu.paths.on_die.rounds import Table, all_rounds
from ondie.emu.paths.statement import Share, Work, in_drive, total
from ondie.emu.paths.update_path import UpdatingPath
from ondie.emu.units import plural


@dataclass
class OnDie(UpdatingPath):
    """Path in which processing elements (PEs) on the flash dies update the weights."""

    drives: System = field(init=False, repr=False)
    """System that holds the states. The wear of its blocks determines which stripes move."""

    name: ClassVar[str] = "on_die"
    title: ClassVar[str] = "on the flash dies"

    @property
    def round_trip(self) -> bool:
        """True if pages pass through the controller's ECC before the PEs process them, and the
        results pass through the ECC again to get new parity."""
        return self.cfg.pe.protection == "controller_ecc"

    @property
    def compute_ps(self) -> int:
        """Time (ps) to update a stripe between sense and program (vector passes), and to randomize,
        check and encrypt its pages. Excludes ECC in the die."""
        time, _ = self.stripe_ps
        return time + pe.guarding_ps(self.cfg, self.stripes[0].planes)

    @property
    def stripe_ps(self) -> tuple[int, int]:
        """(time of a stripe's vector passes, part of that time on the die's bus), ps; see
        pe.stripe_ps."""
        stripes, op = self.stripes[0], self.trace.op
        return pe.stripe_ps(
            self.cfg, op, self.coupled_decay, stripes.groups, stripes.dtype.itemsize
        )

    def granule(self) -> int:
        """Return the number of parameters in a round, which has one stripe on every die."""
        groups = max(self.geometry.planes // len(self.vectors), 1)
        width = self.stored.vectors[0].dtype.itemsize
        return self.geometry.flash_page_bytes // width * groups * self.geometry.dies

    def period(self) -> int:
        return self.granule() * self.geometry.pages

    def unsampled(self) -> str | None:
        if not self.cfg.pe.rain:
            return None
        return "parity pages rotate over the dies, so their blocks fill only after many periods"

    def lay_out(self) -> None:
        self.steps = steps(self.cfg)
        weight_dtype, gradient_dtype = self.stored.vectors[0].dtype, self.stored.gradient.dtype
        self.stripes = tuple(
            Stripes.of(
                shard, self.vectors, self.geometry, dtype=weight_dtype, gradient=gradient_dtype
            )
            for shard in self.shards
        )

    @cached_property
    def guarded(self) -> tuple[Guarded, ...]:
        """Super-pages that hold stripes, parities and commit records, by device."""
        return tuple(Guarded.of(self.cfg, stripes, self.geometry.dies) for stripes in self.stripes)

    @cached_property
    def homes(self) -> tuple[Homes, ...]:
        """Stripe map of each device: the super-page that holds each stripe."""
        return tuple(Homes(stripes.count, self.geometry.dies) for stripes in self.stripes)

    @cached_property
    def good_blocks(self) -> np.ndarray:
        """Mask of good blocks in each die's reservoir, bool[devices x dies, blocks]."""
        return ~reservoir.bad_blocks(self.cfg, self.geometry, len(self.shards))

    @property
    def devices(self) -> Devices:
        """Stripes and constants of all devices, for the modules that add plan rows."""
        return Devices(
            self.cfg, self.geometry, self.steps, self.stripes, self.homes, self.guarded,
            self.good_blocks, self.compute_ps, self.round_trip,
        )  # fmt: skip

    @property
    def scanned_planes(self) -> int:
        """Number of planes of a die whose out-of-band data must be scanned after a power cut."""
        turns = self.cfg.ftl.reservoir_rotate > 0
        return self.geometry.planes if turns else self.stripes[0].planes

    @property
    def migrates(self) -> bool:
        """True if stripes may move between unequally worn dies. Always False with commit records,
        and with parity over dies, because a parity binds stripes to dies."""
        plain = self.steps == (GRADIENT, SENSE, COMPUTE, PROGRAM_STEP)
        guarded = self.cfg.pe.rain or self.cfg.pe.atomicity != "none"
        return self.cfg.ftl.reservoir_migrate > 0 and plain and not guarded

    @property
    def super_pages(self) -> int:
        """Number of super-pages in a device's map. If stripes may move, the map has about twice
        the initial number."""
        first = max(guarded.super_pages for guarded in self.guarded)
        if not self.migrates:
            return first
        each = -(-first // self.geometry.dies)
        return (2 * each + 1) * self.geometry.dies

    def unstorable(self) -> str | None:
        """Return the reason why the PEs cannot process the storage format, or None if they can. PEs
        process pages value by value, in parallel in the planes of a die."""
        form = formats.FORMATS[self.options.format]
        if form.name == "fp32" or self.cfg.pe.kind == "none":
            return None
        if form.codes or form.w != form.state:
            return (
                "a page of states holds more or fewer values than a page of weights; all planes of "
                "a super-page must hold the same number of values"
            )
        if form.random:
            return "the dies have no source of random bits"
        if not self.cfg.pe.narrow_values:
            return (
                "pe.narrow_values = 0: the processing elements accept only 32-bit values, as "
                "published; set it to 1 or 2 for elements that widen and round 16-bit values"
            )
        return None

    def missing(self) -> str | None:
        if self.cfg.pe.kind == "none":
            return "no processing elements on the dies (pe.kind = none); use --device csd-pe"
        if self.round_trip and self.options.weights_up != "fp32":
            return (
                "pe.protection = controller_ecc: the controller decodes whole pages, so "
                "weights are sent as fp32; use --weights-up fp32"
            )
        if self.stripes[0].groups < 1:
            return (
                f"{len(self.vectors)} vectors ({', '.join(self.vectors)}) do not fit in the "
                f"{self.geometry.planes} planes of a die"
            )
        # One block per die must have no valid super-page, for the next program.
        good = int(self.good_blocks.sum(axis=1).min())
        room = (good - 1) * self.geometry.pages * self.geometry.dies
        need = max(guarded.reserved for guarded in self.guarded)
        if need > room:
            gb = self.geometry.super_page_bytes / 1e9
            return (
                f"states of {self.trace.n_params:,} parameters take {need * gb:.4g} GB of "
                f"super-pages per device, but the reservoir has {max(room, 0) * gb:.4g} GB "
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
        for stripes in self.stripes:
            system.fill_reservoir(stripes.shard.device, 0, stripes.count)

    def follow(self, system: System) -> Reservoir:
        return Reservoir(system, self.stripes, self.homes, self.compute, self.guarded)

    def delivered(self) -> np.ndarray | None:
        sent = super().delivered()
        if sent is None or self.arithmetic is None:
            return None
        return self.arithmetic.shown(sent)

    def notes(self) -> list[str]:
        found, form = without_ecc(self.cfg), self.stored.format
        if form.name == "fp32":
            return found
        what = "widen gradients when they use them (not published)"
        if form.g == form.w:
            values = plural(self.cfg.pe.narrow_values, "value")
            what = (
                f"widen {values} per cycle, keep them in FP32 through all passes, and round the "
                "results (not published)"
            )
        return [*found, f"format {form.name}: assumes processing elements that {what}"]

    def work(self, steps: int) -> Work:
        applied = self.applied(steps)
        values = sum(s.count * s.params for s in self.stripes) * applied
        width, gradient = (
            s.itemsize for s in (self.stripes[0].dtype, self.stripes[0].gradient_dtype)
        )
        done = pe.passes(self.trace.op, self.coupled_decay)
        moved = sum(each_pass.reads + each_pass.writes for each_pass in done)
        crossing = sum(pe_bus.crossing(self.trace.op, self.coupled_decay))
        pages = sum(s.count * s.planes for s in self.stripes) * applied
        twice = 2 * pages * 8 * self.geometry.flash_page_bytes  # when read and when programmed
        made = in_drive(self.trace.n_params, gradient, self.up_bytes)
        streamed = pages * 8 * self.geometry.flash_page_bytes * pe.extra_passes(self.cfg)
        return Work(
            pe_cipher_bits=twice if self.cfg.pe.cipher == "die" else 0,
            adds=values * sum(each_pass.adds for each_pass in done),
            multiplies=values * sum(each_pass.multiplies for each_pass in done),
            register_bits=values * 8 * width * moved + 2 * streamed,
            die_bus_bits=values * 8 * width * crossing,
            host_dram=total(made, applied),
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
        """Yield the plan rows of all rounds of one stripe per die: the transfer of the gradients to
        the device's DRAM, each step for every die, and the completed parities."""
        rounds = all_rounds(out.next, self.guarded, len(self.steps))
        batch = max(plan_rows.MAX_CHUNK // (1 + (len(self.steps) + 1) * self.geometry.dies), 1)
        for at in range(0, len(rounds["k"]), batch):
            part = {name: column[at : at + batch] for name, column in rounds.items()}
            columns = self._columns(part, after)
            out.add(len(columns["lpn"]), **columns)
            if out.full():
                yield out.take()

    def _columns(self, rounds: dict[str, np.ndarray], after: int) -> dict[str, np.ndarray]:
        """Return the plan columns of ``rounds`` by name. The rows of a round are the load of its
        gradients, then each step for all dies, then the parities."""
        table = Table.of(rounds, self.steps, self.geometry.dies)
        table.after0[table.load] = np.where(
            table.staged < 0, after, table.staged + self.geometry.dies
        )[table.load]
        sequence = [step for step in self.steps if step not in JOIN_STEPS]
        for step, earlier in zip(sequence[1:], sequence, strict=False):
            table.after0[table.mask[step]] = table.row[earlier][table.mask[step]]
        odc = table.mask[COMPUTE]
        table.after1[odc] = table.row[sequence[0]][odc]
        self.schedule(table, after)
        stripes = self.stripes[0]
        gradient, stripe = stripes.gradient_bytes, stripes.planes * self.geometry.flash_page_bytes
        ecc_ps = pe.ecc_ps(self.cfg, stripes.planes)
        coded = table.mask[SENSE] | table.mask.get(PROGRAM_STEP, False)
        resource = np.where(table.load, plan_rows.DMA_DOWN, plan_rows.DIE)
        kind = np.full(len(table.load), timing.BESIDE)
        first = np.array([each.shard.start for each in self.stripes])[table.dev]
        lpn = np.where(table.load, first + table.stripe * stripes.params, table.stripe)
        bytes_in = np.where(table.load, table.width * gradient, np.where(table.made, stripe, 0))
        bytes_out = np.zeros_like(bytes_in)
        for step, its in table.mask.items():
            if step in JOIN_STEPS:
                resource[its] = plan_rows.JOIN
                continue
            kind[its] = KIND[step]
            if step in (GRADIENT, KEEP_STEP):
                bytes_in[its] = gradient
            elif step in (PROGRAM_STEP, STORE_STEP):
                bytes_in[its] = stripe
            elif step != COMPUTE or self.round_trip:  # out for its parity
                bytes_out[its] = stripe
        if KEEP_STEP in table.mask:  # sensed with the states
            kind[table.mask[SENSE]] = timing.RECALL
            bytes_out[table.mask[SENSE]] += gradient
        if CHAIN in table.mask:
            lpn[table.made] = self._chain(table)
        return {
            "device": table.dev,
            "resource": resource,
            "kind": kind,
            "phase": np.full(len(kind), UPDATE),
            "lpn": lpn,
            "tag": np.where(table.load, table.width * stripes.params, 0),
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
            "array_ps": np.where(odc, self.compute_ps, np.where(coded, ecc_ps, 0)),
            "after0": table.after0,
            "after1": table.after1,
        }

    def schedule(self, table: Table, after: int) -> None:
        """Set the rows that gradient loads and senses wait for, according to pe.dispatch.
        ``after``: id of the last row before the update."""
        channels, ways = self.geometry.channels, self.geometry.ways
        vpp, bpr = table.mask[GRADIENT], table.mask[SENSE]
        last = STORE_STEP if STORE_STEP in table.mask else PROGRAM_STEP
        dispatch = self.cfg.pe.dispatch
        if dispatch == "lockstep":
            # Gradients go to the dies of a channel in turn; the first waits for the whole channel.
            head, lane = table.die < channels, table.die % channels
            table.after0[vpp] = np.where(head, table.base, table.row[GRADIENT] - channels)[vpp]
            last_before = table.earlier(last, (ways - 1) * channels + lane)
            table.after1[vpp] = np.where(head, last_before, table.previous(last))[vpp]
            # The sense also waits for the previous program of the channel's first die.
            table.after1[bpr] = table.earlier(last, lane)[bpr]
            table.after0[bpr] = self._last_way(table, GRADIENT)[bpr]
        elif dispatch == "free":
            table.after0[vpp] = table.base[vpp]
            table.after1[vpp] = table.previous(last)[vpp]
        else:
            table.after0[vpp] = table.base[vpp]
            table.after1[vpp] = table.previous(COMPUTE)[vpp]
            table.after0[bpr] = np.where(table.before < 0, after, table.previous(last))[bpr]
            if CHAIN in table.mask:  # gradients wait for parities, which wait for free registers
                table.after1[bpr] = table.row[GRADIENT][bpr]

    def _last_way(self, table: Table, step: int) -> np.ndarray:
        """Return, for each row, the id of the row that performs ``step`` on the last die of the
        row's channel in the row's round."""
        channels, lane = self.geometry.channels, table.die % self.geometry.channels
        way = np.minimum(self.geometry.ways - 1, (table.width - 1 - lane) // channels)
        return table.row[step] - table.die + way * channels + lane

    def _chain(self, table: Table) -> np.ndarray:
        """Chain each fetched stripe to the previous stripe under its parity, so that the parity
        is programmed after its last stripe. Return the super-pages of the parities, int64."""
        its = table.mask[CHAIN]
        members = self.guarded[0].members
        before = np.where(
            table.die > 0, table.row[CHAIN] - 1, table.earlier(CHAIN, self.geometry.dies - 1)
        )
        table.after0[its] = table.row[FETCH_STEP if FETCH_STEP in table.mask else COMPUTE][its]
        table.after1[its] = np.where(table.stripe % members > 0, before, -1)[its]
        table.after1[table.load] = table.staged_end[table.load]  # parities also wait in DRAM
        counts = np.array([guarded.count for guarded in self.guarded])[table.dev]
        number = table.parity + table.at - 1 - len(self.steps) * table.width
        final = np.minimum((number + 1) * members, counts) - 1  # its last stripe
        chain = table.row[CHAIN] - table.die + final - table.round * self.geometry.dies
        table.after0[table.made] = chain[table.made]
        offsets = np.cumsum([0, *(len(guarded.parity) for guarded in self.guarded)])
        every = np.concatenate([guarded.parity for guarded in self.guarded])
        return every[(number + offsets[table.dev])[table.made]]

    def commit(self, out: Rows, done: Sequence[frozenset[int]] = ()) -> None:
        """Add rows that program the commit record of every die. ``done``: super-pages of the commit
        records that are already programmed and get no row, by device."""
        after = out.fence(UPDATE)
        for stripes, guarded in zip(self.stripes, self.guarded, strict=True):
            lpn = guarded.records + np.arange(self.geometry.dies)
            lpn = (
                lpn[[sp not in done[stripes.shard.device] for sp in lpn.tolist()]] if done else lpn
            )
            out.add(
                len(lpn),
                device=stripes.shard.device,
                resource=plan_rows.DIE,
                kind=timing.BESIDE,
                phase=UPDATE,
                lpn=lpn,
                bytes_in=self.geometry.flash_page_bytes,
                after0=after,
            )

    def weights_up(self, out: Rows, after: int) -> Iterator[np.ndarray]:
        """Yield the plan rows that read every page of new weights to the host."""
        stripes = self.stripes[0]
        yield from self.read_out(
            out, after, WEIGHTS_UP, stripes.groups, stripes.params * self.up_bytes
        )

    def read_out(
        self,
        out: Rows,
        after: int,
        phase: int,
        pages: int,
        size: int,
        which: Sequence[np.ndarray] | None = None,
    ) -> Iterator[np.ndarray]:
        """Yield rows, alternating between devices, that read super-pages and send ``size`` bytes of
        each to the host. ``pages``: pages per super-page, which determine the time of the die's
        decoder. ``which``: super-pages of each device; None selects those that hold stripes."""
        which = which or [homes.super_pages(0, homes.count) for homes in self.homes]
        piece = plan_rows.MAX_CHUNK // len(self.stripes)
        for start in range(0, max(map(len, which)), piece):
            for stripes, its in zip(self.stripes, which, strict=True):
                count = min(piece, len(its) - start)
                if count > 0:
                    out.add(
                        count,
                        device=stripes.shard.device,
                        resource=plan_rows.DIE,
                        kind=timing.READ,
                        phase=phase,
                        lpn=its[start : start + count],
                        bytes_out=size,
                        array_ps=pe.ecc_ps(self.cfg, pages),
                        after0=after,
                    )
            if out.full():
                yield out.take()

    def _stripe_s(self, stripes: Stripes, array: float, load: float) -> tuple[float, str]:
        """Return (seconds from one stripe of a die to the next, name of the bottleneck)."""
        return stripe_s(self.devices, stripes, array, load)

    def bound(self, step: int) -> Bound:
        """Return the bound on the update time: stripes per die x max(:meth:`_stripe_s`, times of
        the gradients of one stripe per die on the link and in DRAM) + erases of new blocks."""
        flash, geometry = self.cfg.flash, self.geometry
        stripes = max(self.stripes, key=lambda each: each.count)
        command = flash.t_command_ps / 1e12
        load = stripes.gradient_bytes / flash.bus_bytes_per_s + stripes.groups * command
        passes = pe_passes_s(self.cfg, self.trace.op, self.coupled_decay, self.stripes[0])
        compute = self.compute_ps / 1e12 if passes is None else passes
        _, crossing = self.stripe_ps
        over = f", {crossing / 1e6:.4g} of it over the die's bus," if crossing else ""
        array = flash.t_read_ps / 1e12 + compute + flash.t_program_ps / 1e12
        array += (2 * stripes.planes + 1) * command + 2 * pe.ecc_ps(self.cfg, stripes.planes) / 1e12
        if self.round_trip:
            array += stripes.planes * (self.cfg.ecc.decode_ps + self.cfg.ecc.encode_ps) / 1e12
        whole = -(-stripes.count // geometry.dies)
        # The reservoir was filled with this number of stripes; blocks entered later are erased.
        before = self.applied(step) + 1
        opened = -(-(before + 1) * whole // geometry.pages) - -(-before * whole // geometry.pages)
        erases = opened * flash.t_erase_ps / 1e12 if self.cfg.ftl.initial == "steady" else 0.0
        stripe, name = self._stripe_s(stripes, array, load)
        rate = self.cfg.link.down_bytes_per_s
        if self.cfg.link.uplink_bytes_per_s:
            rate = min(rate, self.cfg.link.uplink_bytes_per_s // self.cfg.system.devices)
        link = stripes.gradient_bytes * geometry.dies / rate
        dram = 2 * stripes.gradient_bytes * geometry.dies / self.cfg.dram.bandwidth_bytes_per_s
        stripe, name = max((stripe, name), (link, "link down"), (dram, "DRAM"))
        text = (
            f"{plural(whole, 'stripe')} per die x {stripe * 1e6:.4g} us "
            f"(tR {flash.t_read_ps / 1e6:.4g} + PE {compute * 1e6:.4g}{over} + tPROG "
            f"{flash.t_program_ps / 1e6:.4g} + gradient {load * 1e6:.4g}"
            f"{f' x {geometry.ways} dies' if self.cfg.pe.dispatch == 'lockstep' else ''}"
            " + commands)"
        )
        if moved := channel_s(self.devices, stripes):
            text += f", including {moved * 1e6:.4g} us of transfers over the channel"
        text += f" + {plural(opened, 'erase')} x {flash.t_erase_ps / 1e9:.4g} ms"
        return Bound(whole * stripe + erases, name, text).sharing(passes is None)
