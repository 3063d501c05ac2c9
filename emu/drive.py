"""One computational storage drive with a command interface, completions and bytes on flash.

This module owns the command interface of a single drive: submission, simulation time, completions,
power cut and payload. It does not own the event loop (engine/run/driver.py), the execution of a
command inside the drive (engine, nvme, ftl, nand) or the plans of paths (engine/run/system.py).
Source: this project's command record (nvme/command.py).
"""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.config.config import Config, configuration
from ondie.emu.engine.core import events, plan_rows
from ondie.emu.engine.core.conservation import Place, check_laws
from ondie.emu.engine.run import build
from ondie.emu.engine.run.driver import Driver, PowerCut
from ondie.emu.ftl.invariants import Requested, check_between_events, check_idle
from ondie.emu.nand import bit_errors
from ondie.emu.nand.page_store import PageStore
from ondie.emu.nvme import command as queues
from ondie.emu.nvme import command_check
from ondie.emu.nvme.data_cache_payload import CachedBytes
from ondie.emu.units import InputError


class Drive(Driver):
    """One drive with configuration ``cfg`` and its host, with a separate simulation clock.

    ``cfg``: a configuration, the name of a preset, or a TOML file.

    ``payload=True`` keeps the bytes of every page. ``buffer`` (uint8[slots, page_bytes]) is then
    the caller's memory: commands with a ``payload_slot`` write pages from it and read pages into
    it. The caller must not touch a slot until its command has completed. ``queue_depth`` replaces
    the configured depth, which is the smaller of the host's and the drive's. ``seed`` determines
    bad blocks, failures and bit errors. Commands in flight at the same time may take effect in
    any order, as in NVMe. To order two commands, wait for the completion of the first.
    """

    def __init__(
        self,
        cfg: Config | str | os.PathLike[str],
        payload: bool = False,
        *,
        queue_depth: int | None = None,
        seed: int = 0,
    ) -> None:
        cfg = configuration(cfg)
        arrays = build.build(
            cfg, devices=1, phases=1, queue_depth=queue_depth, payload=payload, seed=seed
        )
        super().__init__(cfg, arrays)
        self.lpns = int(self.arrays.cfg.lpns[0])
        """Number of logical pages of the drive."""
        self.store = PageStore(self.geometry.page_bytes) if payload else None
        self.cached = CachedBytes()
        """Contents of the pages in the drive's data cache."""
        self.buffer: np.ndarray | None = None
        self._reached = 0
        self.requested_pages = {queues.READ: 0, queues.WRITE: 0}
        """Number of pages of all accepted commands, by operation (READ, WRITE)."""
        self._next_id = 0  # row of the next command
        self._private_buffers: dict[int, np.ndarray] = {}
        """Buffers of the calls of read() and write() that have not completed, by row id."""
        self._last_arrival = 0
        self._waiting: list[np.ndarray] = []  # accepted commands that are not in the ring yet
        self._open = np.zeros(0, np.int64)  # ids of unreported commands in the ring
        self._ring = np.zeros(len(self.arrays.row), queues.COMMAND)
        self._reports: list[np.ndarray] = []

    # --- commands

    def submit(self, commands: np.ndarray) -> None:
        """Accept all commands (queues.COMMAND[n], sorted by arrival), or none of them.

        Raises InputError naming the first command that nvme/command_check.py rejects, for example
        for pages outside the device, an arrival before ``now`` or before the previous arrival, or
        an unsupported field.
        """
        self._submit(commands, None)

    def _submit(self, commands: np.ndarray, own: np.ndarray | None) -> None:
        """Check and accept ``commands`` (queues.COMMAND[n]), or raise InputError.

        ``own``: the buffer of read() or write(), uint8[n, page_bytes]; None for submit().
        """
        self.check_power()
        slots = 0 if self.buffer is None else len(self.buffer)
        limits = command_check.Limits(
            lpns=self.lpns,
            transfer_pages=self.cfg.frontend.max_transfer_bytes // self.geometry.page_bytes,
            arrival=max(self._last_arrival, self.now),
            slots=None if self.store is None else slots,
            payload_known=own is not None,
            streams=self.cfg.ftl.write_streams,
        )
        command_check.check(commands, limits)
        if not len(commands):
            return
        self._last_arrival = int(commands["arrival"][-1])
        if own is not None:
            self._private_buffers[self._next_id] = own
        self._next_id += len(commands)
        self._waiting.append(commands.copy())
        for op in (queues.READ, queues.WRITE):
            self.requested_pages[op] += int(commands["n"][commands["op"] == op].sum())
        self.supply()

    def supply(self) -> bool:
        """Load waiting commands into the ring of plan rows while it has room. Return True if any
        command was loaded."""
        loaded = False
        while self._waiting:
            room = min(self.free_rows, plan_rows.MAX_CHUNK)
            if room == 0:
                break
            self._collect()
            head = self._waiting[0]
            part, rest = head[:room], head[room:]
            ids = self.next_row + np.arange(len(part))
            self._ring[ids & (len(self._ring) - 1)] = part
            self._open = np.concatenate([self._open, ids])
            self.load_rows(self._plan(ids, part))
            loaded = True
            if len(rest):
                self._waiting[0] = rest
            else:
                self._waiting.pop(0)
        waiting = sum(len(commands) for commands in self._waiting)
        self.rows_wanted = min(waiting, len(self._ring) // 2)
        return loaded

    def _plan(self, ids: np.ndarray, commands: np.ndarray) -> np.ndarray:
        """Return the plan rows (PLAN[n]) of commands (COMMAND[n]) with the given row ids."""
        plan = np.zeros(len(commands), plan_rows.PLAN)
        size = commands["n"] * self.geometry.page_bytes
        plan["id"] = ids
        plan["resource"] = plan_rows.NVME
        plan["kind"] = commands["op"]
        plan["lpn"] = np.where(commands["op"] == queues.FLUSH, 0, commands["lpn"])
        plan["bytes_in"] = np.where(commands["op"] != queues.READ, size, 0)
        plan["bytes_out"] = np.where(commands["op"] == queues.READ, size, 0)
        plan["array_ps"] = commands["arrival"]
        plan["after0"] = plan["after1"] = -1
        plan["tag"] = commands["tag"]
        plan["stream"] = commands["stream"]
        plan["fua"] = commands["fua"]
        return plan

    # --- time

    @property
    def outstanding(self) -> int:
        """Number of accepted commands that have not completed."""
        self._collect()
        return len(self._open) + sum(len(commands) for commands in self._waiting)

    @property
    def now(self) -> int:
        """Simulation time that has been reached (ps). Later commands must not arrive before this
        time."""
        return self._reached

    def run_until(self, t_ps: int = NEVER - 1, max_events: int | None = None) -> int:
        """Handle at most ``max_events`` events up to time ``t_ps``; return the number of events
        handled.

        Raises InputError if ``t_ps`` is before ``now``, or if writes wait for space that garbage
        collection cannot free.
        """
        self.check_power()
        if t_ps < self.now:
            raise InputError(f"t_ps = {t_ps}: must not be before the device's time {self.now} ps")
        count = super().run_until(t_ps, max_events)
        next_event = self.next_event
        self._reached = t_ps if next_event > t_ps or next_event >= NEVER else super().now
        if next_event >= NEVER:
            self.check_finished()
        return count

    def run(self, max_events: int | None = None) -> int:
        """Handle at most ``max_events`` events until no work is left; return the number of events
        handled.

        The clock stays at the time of the last event.
        """
        before = self.now
        count = self.run_until(NEVER - 1, max_events)
        self._reached = max(before, super().now)
        return count

    def power_cut(self, after_events: int) -> int:
        """Run ``after_events`` events, then cut the power; afterwards the drive handles no
        commands.

        Commands that have not completed and data that is only in the data cache are lost.
        Finished programs remain on flash. Returns the number of events handled, which is smaller
        than ``after_events`` if no work was left.
        """
        before = self.events
        self.events_left = after_events
        with suppress(PowerCut):
            self.run_until()
        self.off = True
        self._reached = super().now
        self.cached.clear()
        return self.events - before

    def completions(self) -> np.ndarray:
        """Return the completions since the last call: queues.COMPLETION[n], in completion order.

        ``start`` is the time at which the command entered the submission queue: its arrival, or
        later if the queue was full. ``status`` is 0, or 0x281 if a page could not be corrected; the
        bytes of that page are wrong. Completions with the same end are in submission order.
        """
        self._collect()
        empty = np.zeros(0, queues.COMPLETION)
        out = np.concatenate([empty, *self._reports])
        self._reports = []
        return out

    def _collect(self) -> None:
        """Record the completions of finished commands before their entries in the ring are
        reused."""
        ring = len(self._ring) - 1
        place = self._open & ring
        done = self.arrays.row.state[place] == plan_rows.DONE
        if not done.any():
            return
        ids, place = self._open[done], place[done]
        self._open = self._open[~done]
        if self._private_buffers:
            public = np.array([self._private_buffers.pop(int(i), None) is None for i in ids])
            place = place[public]
        out = np.zeros(len(place), queues.COMPLETION)
        out["tag"] = self.arrays.row.tag[place]
        out["arrival"] = self._ring["arrival"][place]
        out["start"] = np.maximum(self.arrays.row.start[place], out["arrival"])
        out["end"] = self.arrays.row.end[place]
        out["status"] = self.arrays.row.status[place]
        self._reports.append(out[np.argsort(out["end"], kind="stable")])

    # --- payload

    def write(self, lpn: int, data: bytes | np.ndarray) -> None:
        """Write whole pages from logical page ``lpn`` on at the current time; run until the drive
        is idle.

        ``data``: bytes, or an array of any dtype. Raises InputError for a partial page, for pages
        outside the drive, or without payload.
        """
        page = self.geometry.page_bytes
        given = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        raw = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
        if len(raw) % page or not len(raw):
            raise InputError(f"data of {len(raw)} bytes: must be whole pages of {page} bytes")
        self._run_command(queues.WRITE, lpn, raw.reshape(-1, page))

    def read(self, lpn: int, n: int = 1) -> np.ndarray:
        """Read ``n`` pages from logical page ``lpn`` on at the current time; run until the drive
        is idle.

        Returns uint8[n, page_bytes]; unmapped pages are zeros. Raises InputError for pages
        outside the drive, or without payload.
        """
        if n < 1:
            raise InputError(f"n = {n}: must be at least 1 page")
        pages = np.zeros((n, self.geometry.page_bytes), np.uint8)
        self._run_command(queues.READ, lpn, pages)
        return pages

    def _run_command(self, op: int, lpn: int, pages: np.ndarray) -> None:
        """Run one command on ``pages`` (uint8[n, page_bytes]) at the current time until the drive
        is idle.

        ``op``: READ fills ``pages``, WRITE stores them from logical page ``lpn`` on. Raises
        InputError without payload.
        """
        if self.store is None:
            raise InputError("this device keeps no payload; use Drive(cfg, payload=True)")
        command = np.zeros(1, queues.COMMAND)
        command["op"], command["lpn"], command["n"] = op, lpn, len(pages)
        command["payload_slot"], command["arrival"] = -1, max(self.now, self._last_arrival)
        self._submit(command, pages)
        self.run()

    def stored(self, lpn: int) -> np.ndarray | None:
        """Return a copy of the flash contents of a logical page, uint8[page_bytes].

        Return None if the page is not mapped. The call takes no simulated time. Raises InputError
        without payload.
        """
        if self.store is None:
            raise InputError("this device keeps no payload; use Drive(cfg, payload=True)")
        entry = int(self.arrays.l2p[0, lpn])
        return None if entry == 0 else self.store.read(entry - 1).copy()

    def take_log(self, records: np.ndarray) -> None:
        """Apply the engine's log of page operations (``records``) to the stored bytes."""
        if self.store is None:
            return
        for entry in events.entries(records):
            if entry.what == events.LOG_BAD and entry.row < 0:  # a relocated page with bit errors
                wrong = bit_errors.logged_bits(entry, self.arrays.code[0], self.store.page_bytes)
                self.store.damage(entry.ppn, wrong)
            elif not (
                self.store.follow(entry, self.geometry) or self.cached.follow(entry, self.store)
            ):
                self._copy_bytes(self.store, entry)

    def _copy_bytes(self, store: PageStore, entry: events.LogEntry) -> None:
        """Copy the bytes of a logged page operation between the buffer of its command and the
        flash pages."""
        what, lpn, count = entry.what, entry.lpn, entry.n
        command = self._ring[entry.row & (len(self._ring) - 1)]
        buffer, at = self._private_buffers.get(entry.row), lpn - int(command["lpn"])
        if buffer is None:
            buffer, at = self.buffer, at + int(command["payload_slot"])
            if command["payload_slot"] < 0 or buffer is None:
                return
        if what == events.LOG_BAD:
            buffer[at] ^= bit_errors.logged_bits(entry, self.arrays.code[0], store.page_bytes)
            return
        for i in range(count):
            ppn = entry.ppn + i
            match what:
                case events.LOG_READ:
                    buffer[at + i] = store.read(ppn)
                case events.LOG_PROGRAM:
                    store.write(ppn, lpn + i, buffer[at + i])
                case events.LOG_ZERO:
                    buffer[at + i] = 0
                case events.LOG_STORE:
                    self.cached.pages[lpn + i] = buffer[at + i].copy()
                case events.LOG_SERVE:
                    buffer[at + i] = self.cached.pages[lpn + i]

    # --- conservation

    def check(self) -> None:
        """Check the conservation laws of the drive. Raises Imbalance.

        Laws that require an idle drive are checked only when no command is outstanding.
        """
        check_between_events(self.arrays, self.geometry)
        if not self.off and self.outstanding == 0 and self.idle:
            pages = self.requested_pages
            requested = Requested(self._next_id, pages[queues.READ], pages[queues.WRITE])
            check_idle(self.arrays, self.geometry, requested)
        if self.store is not None:
            misplaced = self._misplaced(self.store)
            first = misplaced[0] if misplaced else ""
            check_laws(Place.PAYLOAD, {"misplaced_pages": len(misplaced)}, first)

    def _misplaced(self, store: PageStore) -> list[str]:
        """Return one sentence per mapped page whose flash page belongs to another logical page.

        Translation pages have no stored bytes and are not checked.
        """
        wrong = []
        for lpn in np.flatnonzero(self.arrays.l2p[0, : self.lpns]):
            ppn = int(self.arrays.l2p[0, lpn]) - 1
            if store.owner(ppn) != lpn:
                wrong.append(f"page {lpn} is mapped to {ppn}, which holds {store.owner(ppn)}")
        return wrong
