"""Served drive as an NVM subsystem: the state that the controllers of all transports share.

Owns the capabilities and namespaces of a served drive, the health data that its log pages report,
and the actions of admin commands on the media. Does not own the state of individual controllers
(emu/controller), I/O commands (nvme_io.py), or queues, register accesses and sockets (the
transports).
Source: NVM Express Base Specification 2.0, sections 2.4 (NVM subsystem), 3.6 (shutdown), 5.14
(Format NVM) and 8.21 (sanitize operations).

A transport does this for each controller:

1. It calls ``NvmeDrive.controller``, which creates the controller and registers a function that
   posts completions of Async Event Requests from any thread.
2. It passes admin commands to ``NvmeDrive.execute``, and performs the remaining actions in
   ``Reply.actions``: the actions for queues, doorbell buffers, and the host identifier.
3. It passes I/O commands to ``nvme_io.IoRunner.run``. Each thread has a separate IoRunner.
4. For the actions of register writes, it calls ``enabled`` or ``shut_down``; for RESET, it stops
   its threads and calls ``Controller.disabled``.
"""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ondie.emu.controller.actions import Action, Do
from ondie.emu.controller.admin import Controller, Reply
from ondie.emu.controller.capabilities import Capabilities, capabilities_of
from ondie.emu.controller.events import Event
from ondie.emu.controller.health import Health, Past, Ran
from ondie.emu.controller.health_logs import IN_PROGRESS
from ondie.emu.controller.identify import WITH_USED_BLOCKS
from ondie.emu.controller.log_pages import WITH_HEALTH
from ondie.emu.controller.namespace_commands import ended
from ondie.emu.controller.namespaces import Namespace, Namespaces
from ondie.emu.controller.opcodes import ADMIN_EFFECTS, Admin, Effect, Tunnel
from ondie.emu.controller.shared import Shared
from ondie.emu.controller.status_code import Code
from ondie.emu.nvme.command import FLUSH, TRIM
from ondie.emu.nvme.wire import Cqe, Sqe
from ondie.emu.serve import controller_state
from ondie.emu.serve.computation import Computation
from ondie.emu.serve.gate import Gate
from ondie.emu.serve.marked_blocks import MarkedBlocks
from ondie.emu.serve.served import Served, ServedDrive
from ondie.emu.serve.tunnel import Deliver, DriveTunnel, check_transfer
from ondie.emu.states.resident import ResidentStates
from ondie.emu.units import InputError

Post = Callable[[tuple[Cqe, ...]], None]
"""Function that posts completions to the admin queue. The function may be called from any
thread."""
ALONE = frozenset(
    int(opcode)
    for opcode, effects in ADMIN_EFFECTS.items()
    if effects & (Effect.CONTENT | Effect.NAMESPACE_INVENTORY | Effect.NAMESPACE_CAPABILITY)
)
"""Opcodes of admin commands during which no I/O command may run."""
TUNNEL = frozenset(int(opcode) for opcode in Tunnel)
BUSY_S = 0.1
"""Maximum time for which Get Log Page waits for current data during a sanitize operation, s."""
FIRMWARE_CHARACTERS, SERIAL_CHARACTERS = 8, 20


@functools.cache
def firmware_revision() -> str:
    """Return the version of the package ondie, shortened to the size of the field Firmware
    Revision."""
    return version("ondie")[:FIRMWARE_CHARACTERS]


class NvmeDrive:
    """Drive ``served`` as an NVM subsystem. A new drive has one namespace that consists of all its
    bytes.

    ``serial``: serial number, from which the names of the subsystem and of namespaces are derived.
    If it is None, the serial number is derived from the UUID of the store; without a store, it is
    random. ``io_queues``, ``vectors``: numbers of I/O queue pairs and of interrupt vectors per
    controller. ``several_controllers``: True if several controllers may exist at the same time, as
    with NVMe over Fabrics. ``states``: weights and optimizer states on the drive, or None; a
    separate namespace provides access to them, and hosts may send computation commands.
    ``shadow_doorbells``: True if PCIe hosts may use shadow doorbells in their memory. ``tunnel``:
    drive end of a tunnel, or None. Raises InputError if the drive exceeds the limits of an NVMe
    controller (capabilities.capabilities_of), or if its saved state cannot be read or written.
    """

    def __init__(
        self,
        served: Served,
        serial: str | None = None,
        io_queues: int = 16,
        vectors: int = 17,
        several_controllers: bool = False,
        states: ResidentStates | None = None,
        shadow_doorbells: bool = True,
        tunnel: DriveTunnel | None = None,
    ) -> None:
        self.served = served
        files = None if served.store is None else served.store.files
        own = uuid.uuid4().hex if files is None else files.folder.superblock.uuid.replace("-", "")
        offered = capabilities_of(
            served.cfg,
            capacity_bytes=served.capacity,
            block_bytes=served.block,
            serial=own[:SERIAL_CHARACTERS].upper() if serial is None else serial,
            firmware=firmware_revision(),
            io_queues=io_queues,
            vectors=vectors,
        )
        self.capabilities: Capabilities = replace(
            offered,
            several_controllers=several_controllers,
            shadow_doorbells=shadow_doorbells,
        )
        """Capabilities of the PCIe controller."""
        self.shared = Shared(Namespaces(self.capabilities))
        self.past = Past()
        self._folder: Path | None = None if files is None else files.folder.path
        self._durable = files is not None and files.folder.syncs
        self._keeps = served.online
        """True if changes of the state are written to the store."""
        self.lock = threading.Lock() if tunnel is None else tunnel.lock
        """Held for every access to ``shared`` and to the state of a controller, but not while the
        drive runs commands or the service is called, because that may take seconds."""
        self._health_read: Health | None = None
        self._at_sanitize: Health | None = None
        """Health data at the start of the last sanitize operation; None before the first one."""
        self._used_read: dict[int, int] = {}
        """Number of mapped bytes by namespace identifier, for the current admin command."""
        self.gate = Gate()
        """Lock that I/O commands share. An admin command that changes the media holds it
        exclusively."""
        self.generation = 0
        """Counter that every command that may change the namespaces increments."""
        self._posts: dict[Controller, Post] = {}
        self._busy_ps = self._busy_until = 0
        self._warning = 0
        """Critical warnings at the last check."""
        self._unsafe_cuts = 0
        """Number of unsafe power cuts since the drive was opened."""
        self._saved: Ran | None = None
        """Counters at the time of the last save; None before the first save."""
        self._sanitizing: threading.Thread | None = None
        self._at_work: set[Controller] = set()
        """Controllers that were enabled, and not shut down since then."""
        self._running = True
        """True if a power cut at this time would be an unsafe shutdown: a host has enabled its
        controller and not sent a shutdown notification."""
        served.at_power_cut.append(self._power_was_cut)
        self.computation: Computation | None = None
        """Object that executes computation commands, or None if the drive holds no optimizer
        states."""
        self._begin()
        self.tunnel = tunnel
        if tunnel is not None:
            check_transfer(tunnel.commands.relay.limits, offered.transfer_bytes)
            self.capabilities = replace(self.capabilities, tunnel=True)
            self.shared.tunnel = tunnel.commands
        if states is not None:
            assert isinstance(served, ServedDrive)
            self.capabilities = replace(self.capabilities, computation=True)
            namespace = self.shared.namespaces.add_states(states.bytes_of_all)
            self.computation = Computation(served, states, namespace, self.lock, self.gate)

    def _begin(self) -> None:
        """Restore the state of the last start from the store, or create a namespace of all
        bytes."""
        found = None
        if self._folder is not None:
            found = controller_state.load(self._folder, self.shared.namespaces)
        if found is None:
            self.shared.namespaces.create_whole()
        else:
            self.shared = found.shared
            new = self.served.recovered  # its clock and counters begin at 0
            ran = found.ran if new else Ran(busy_ps=found.ran.busy_ps)
            saved = new and self.served.cfg.cache.power_loss_protection
            self.past = found.past.restarted(not found.running, saved, ran)
        self._follow_namespaces()
        self.served.marks = MarkedBlocks(self.shared, self.lock, self.save)
        self.save()
        if self.sanitizing():  # as after any loss of power
            self.perform(Action(Do.SANITIZE))

    def _follow_namespaces(self) -> None:
        """Set ``served.detached``: NBD may serve the drive only while namespace 1 consists of all
        its bytes."""
        first = self.shared.namespaces.by_nsid.get(1)
        whole = first is not None and (first.first, first.size) == (0, self.served.capacity)
        self.served.detached = not whole

    def save(self) -> None:
        """Write the state that must survive a power cut to the store, if the drive has a store and
        was online when it was opened. Raises InputError if the state cannot be written."""
        if self._folder is None or not self._keeps:
            return
        past, ran = self.served.ask(self._counted).result()
        with self.lock:
            controller_state.save(
                self._folder, self.shared, past, ran, self._running, self._durable
            )
            self._saved = ran

    def save_counts(self) -> None:
        """Save the state if the counters have changed since the last save. Raises InputError if the
        state cannot be written."""
        _, ran = self.served.ask(self._counted).result()
        if ran != self._saved:
            self.save()

    # --- controllers

    def controller(self, post: Post, deliver: Deliver | None = None, **changes: Any) -> Controller:
        """Return a new controller.

        ``post``: function that posts completions of Async Event Requests; it may be called from any
        thread. ``deliver``: function that posts completions of tunnel commands, or None if the
        controller does not support tunnel commands. ``changes``: values that differ from
        ``capabilities``, for example ``controller_id``.
        """
        offered = replace(self.capabilities, **changes)
        if deliver is None:
            offered = replace(offered, tunnel=False)
        found = Controller(offered, self.shared, self._read_health, self._read_used)
        with self.lock:
            self._posts[found] = post
        if self.tunnel is not None and deliver is not None:
            self.tunnel.add(found, deliver)
        return found

    def remove(self, controller: Controller) -> None:
        """Remove a controller whose transport has disconnected."""
        with self.lock:
            self._posts.pop(controller, None)
            self._at_work.discard(controller)
        if self.tunnel is not None:
            self.tunnel.remove(controller)

    def execute(self, controller: Controller, entry: bytes, data: bytes = b"") -> Reply:
        """Execute an admin command, and perform its actions on the media. Return the reply with the
        actions that the transport must perform. ``entry``, ``data``: see Controller.execute. The
        command fails with Internal Error if its effect cannot be saved or the drive is no longer
        served."""
        if self.tunnel is not None and entry[0] in TUNNEL:  # many a second
            with self.lock:
                reply = controller.execute(entry, data)
            self.tunnel.flush()
            return reply
        try:
            if entry[0] not in ALONE:
                reply = self._execute(controller, entry, data)
                if self.tunnel is not None:
                    self.tunnel.flush()
                return reply
            with self.lock:
                if self.sanitizing():  # it refuses the command, which does not wait for the gate
                    return controller.execute(entry, data)
            with self.gate.alone():
                reply = self._execute(controller, entry, data)
                self.generation += 1
                self.save()
        except InputError:
            with self.lock:
                return controller.failed(entry)
        self._tell_others(controller, controller.changed)
        return reply

    def _execute(self, controller: Controller, entry: bytes, data: bytes) -> Reply:
        """Execute an admin command, and perform its actions on the media; return the reply. Raises
        InputError if a change cannot be saved, or if the drive is no longer served."""
        saved = dict(self.shared.saved_features)
        health, used = self._read_for(Sqe.unpack(entry))
        with self.lock:
            self._health_read, self._used_read = health, used
            reply = controller.execute(entry, data)
            self._follow_namespaces()
        if self.shared.saved_features != saved:
            self.save()
        reply = self._perform_all(controller, entry, reply)
        if entry[0] == Admin.SET_FEATURES:  # a threshold, or which events are sent
            self._tell(lambda each: each.look(self._warning))
        return reply

    def _read_for(self, sqe: Sqe) -> tuple[Health | None, dict[int, int]]:
        """Return (health data or None, number of mapped bytes by namespace identifier), as far as
        the admin command reports them. The caller must not hold ``lock``. Raises InputError if the
        service has ended."""
        if sqe.opcode == Admin.GET_LOG_PAGE and sqe.cdw10 & 0xFF in WITH_HEALTH:
            return self._health_soon(), {}
        if sqe.opcode != Admin.IDENTIFY or sqe.cdw10 & 0xFF not in WITH_USED_BLOCKS:
            return None, {}
        with self.lock:
            found = self.shared.namespaces.by_nsid.get(sqe.nsid)
        if self.sanitizing():  # nothing will be mapped, and the drive may be busy
            return None, {}
        return None, {} if found is None else {found.nsid: self.used_bytes(found)}

    def _health_soon(self) -> Health:
        """Return the current health data or, if a sanitize operation delays it by more than BUSY_S,
        the health data at the start of the operation. Raises InputError if the service has
        ended."""
        if not self.sanitizing() or self._at_sanitize is None:
            return self.health()
        asked = self.served.ask(self._health)
        try:
            return asked.result(BUSY_S)
        except TimeoutError:
            asked.cancel()
            return self._at_sanitize

    def _read_health(self) -> Health:
        assert self._health_read is not None
        return self._health_read

    def _read_used(self, namespace: Namespace) -> int:
        """Return the number of mapped logical blocks of a namespace, or 0 if the namespace was
        created after the blocks were counted."""
        used = self._used_read.get(namespace.nsid, 0) // namespace.block_bytes
        return min(used, namespace.blocks)

    def sanitizing(self) -> bool:
        """Return True if a sanitize operation is in progress."""
        return self.shared.sanitize.status == IN_PROGRESS

    def _perform_all(self, controller: Controller, entry: bytes, reply: Reply) -> Reply:
        """Perform the actions of ``reply`` on the media. Return the reply with the remaining
        actions. If an action fails, return the reply for a failed command instead."""
        left = []
        for action in reply.actions:
            status = self.perform(action)
            if status is None:
                left.append(action)
            elif status:
                with self.lock:
                    return controller.failed(entry, int(Code.INTERNAL_ERROR))
        return reply._replace(actions=tuple(left))

    def perform(self, action: Action) -> int | None:
        """Perform an action on the media and return its status (0 for success). Return None if the
        transport must perform the action instead."""
        match action.do:
            case Do.FLUSH:
                return self.served.run_one(FLUSH)
            case Do.DEALLOCATE:
                trimmed = self.served.run_one(TRIM, action.first, action.size)
                return trimmed or self.served.run_one(FLUSH)
            case Do.ERASE:
                status = self.perform(action._replace(do=Do.DEALLOCATE))
                return status or self.served.erase_stale()
            case Do.SANITIZE:
                with self.lock:
                    self.shared.written_beside = False
                try:
                    self._at_sanitize = self.health()
                except InputError:
                    return int(Code.INTERNAL_ERROR)
                self._sanitizing = threading.Thread(
                    target=self._sanitize, name="ondie sanitize", daemon=True
                )
                self._sanitizing.start()
                return 0
        return None

    def shut_down(self, controller: Controller, abrupt: bool) -> None:
        """Perform the action SHUT_DOWN: flush the drive unless ``abrupt`` is True, and set
        CSTS.SHST."""
        if not abrupt:
            self.served.run_one(FLUSH)
        with self.lock:
            controller.registers.shut_down()
        self._set_running(controller, False)

    def enabled(self, controller: Controller) -> None:
        """Complete the action ENABLE: set CSTS.RDY."""
        if self._set_running(controller, True):
            with self.lock:
                controller.registers.enabled()

    def _set_running(self, controller: Controller, running: bool) -> bool:
        """Record that a controller was enabled (``running`` = True) or shut down. Save the state if
        this changes ``_running``. If the state cannot be saved, set the controller to the failed
        state and return False; otherwise return True."""
        with self.lock:
            if running:
                self._at_work.add(controller)
            else:
                self._at_work.discard(controller)
            before, self._running = self._running, bool(self._at_work)
            if self._running == before:
                return True
        try:
            self.save()
        except InputError:
            with self.lock:
                self._running = before  # as the file has it: the next change is written
                controller.registers.fail()
            return False
        return True

    def close(self) -> None:
        """Wait for the end of a sanitize operation in progress, and save the state. Raises
        InputError if the state cannot be written."""
        if self._sanitizing is not None:
            self._sanitizing.join()
        if self._power_was_cut in self.served.at_power_cut:
            self.served.at_power_cut.remove(self._power_was_cut)
        self._running = False
        self.save()

    def _tell_others(self, controller: Controller, changed: tuple[int, ...]) -> None:
        """Report the namespaces ``changed`` as changed to all controllers except ``controller``."""
        for nsid in changed:

            def report(other: Controller, nsid: int = nsid) -> tuple[Cqe, ...]:
                return other.notify(Event.NAMESPACE_ATTRIBUTE, nsid)

            self._tell(report, controller)

    def _tell(
        self, report: Callable[[Controller], tuple[Cqe, ...]], but: Controller | None = None
    ) -> None:
        """Call ``report`` for every controller except ``but``, and post the completions that
        ``report`` returns."""
        with self.lock:
            found = [(post, report(each)) for each, post in self._posts.items() if each is not but]
        for post, entries in found:
            if entries:
                post(entries)

    # --- media

    def _sanitize(self) -> None:
        """Deallocate all bytes, erase all blocks with data, and report the end of the operation."""
        with self.gate.alone():
            size = self.served.capacity
            whole = Action(Do.ERASE, size=size)
            success = self.perform(whole) == 0
        with self.lock:
            began = self.shared.sanitize
            erased = success and not self.shared.written_beside
            self.shared.sanitize = ended(began, success)._replace(erased=erased)
        try:
            self.save()
        except InputError:  # the file says that the operation is in progress: it will run again
            with self.lock:
                self.shared.sanitize = ended(began, success=False)
        self._tell(lambda each: each.notify(Event.SANITIZE_COMPLETED))

    # --- counters

    def add_busy(self, first_ps: int, last_ps: int) -> None:
        """Add the simulated time from ``first_ps`` to ``last_ps``, in which commands were in
        flight, to the busy time. Time that was added before is not counted twice. The caller holds
        ``lock``."""
        self._busy_ps += max(last_ps - max(first_ps, self._busy_until), 0)
        self._busy_until = max(last_ps, self._busy_until)

    def _power_was_cut(self) -> None:
        with self.lock:
            self._unsafe_cuts += self._running
            self._busy_until = 0  # the clock of the next start begins at 0

    def _counted(self) -> tuple[Past, Ran]:
        """Return (health data of the starts before the current start of the drive, counters of the
        current start). Only the service thread may call this method."""
        starts, saves, before = self.served.before()
        past = self.past.after(starts, self._unsafe_cuts, saves, before)
        return past, self.served.ran(self._busy_ps)

    def look(self) -> None:
        """Read the critical warnings of the drive, and report new warnings to each controller whose
        host has enabled them. Raises InputError if the service has ended."""
        self._warning = self.served.ask(self.served.critical_warning).result()
        self._tell(lambda each: each.look(self._warning))

    def health(self) -> Health:
        """Return the current health data of the drive. Raises InputError if the service has
        ended."""
        return self.served.ask(self._health).result()

    def _health(self) -> Health:
        return self.served.health(*self._counted())

    def used_bytes(self, namespace: Namespace) -> int:
        """Return the number of mapped bytes of a namespace or, for the namespace of optimizer
        states, the size of the namespace. Raises InputError if the service has ended."""
        unit = self.served.unit
        if namespace.states:
            return namespace.size
        mapped = self.served.mapped(namespace.first // unit, namespace.size // unit)
        return int(np.count_nonzero(mapped)) * unit
