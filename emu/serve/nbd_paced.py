"""Session of one NBD client of a drive that delivers completions at their modeled times on the wall
clock.

Owns the batches in flight, and the thread that replies to each request when the request completes,
while other requests are in flight and new requests arrive. Does not own the requests that need
several steps (nbd_session.py), the messages (nbd_request.py) or the times of completions
(emu/service.py).
Source: the NBD protocol (github.com/NetworkBlockDevice/nbd, doc/proto.md), which allows replies in
any order.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time

import numpy as np

from ondie.emu.nvme.client_queue import Connection, Stream, Ticket
from ondie.emu.nvme.client_turns import IN_FLIGHT, REFUSED
from ondie.emu.serve import nbd_request as words
from ondie.emu.serve.defects import show_exception
from ondie.emu.serve.nbd_request import REQUEST, NbdError, error_of
from ondie.emu.serve.nbd_session import Batch, Session
from ondie.emu.serve.nbd_wire import Handshake
from ondie.emu.serve.served import Served
from ondie.emu.units import InputError
from ondie.kernels.errors import KernelError

Replies = tuple[list[bytes], dict[int, tuple[int, ...]]]
"""Encoded replies to requests, in order, and the fields (words.REQUEST) of each request that
completed without an error, by the index of its reply."""
ERROR = REQUEST.names.index("error") if REQUEST.names else -1
TAG_SHIFT = 16
"""Bit position of the batch number in the tag of a drive command. The lower bits of the tag are the
number of the NBD request in the batch."""
MOST_BATCHES = 32
"""Maximum number of batches of requests in flight. The queue depth of the drive limits the total
number of drive commands in flight."""


class Flight:
    """Batch of requests in flight: the requests that have no reply yet, and the errors of failed
    requests. ``stream``: stream of the completions of the drive commands in the batch, or None if
    the drive does not execute the batch."""

    def __init__(self, batch: Batch, count: int, commands: int, stream: Ticket | None) -> None:
        self.batch, self.commands = batch, commands
        self.requests: list[tuple[int, ...]] = batch.requests[:count].tolist()
        self.left = batch.requests["count"][:count].tolist()
        """Number of commands in flight for each request of the batch."""
        self.errors: dict[int, int] = {}
        self.waiting = {number for number, left in enumerate(self.left) if left}
        """Numbers of the requests in the batch that have no reply yet."""
        self.stream = stream


class PacedSession(Session):
    """NBD session that replies to each request when the request completes. ``source``: connection
    to the drive that delivers completions at their modeled times."""

    def __init__(
        self, sock: socket.socket, served: Served, handshake: Handshake, source: Connection
    ) -> None:
        super().__init__(sock, served, handshake)
        self._source = source
        self._spare: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._batches = 1
        self._flights: dict[int, Flight] = {}
        self._changed = threading.Condition()
        """Condition variable with the lock of ``_flights`` and of the attributes that describe the
        end of the session. It is notified when a waiting thread may continue."""
        self._in_flight = 0
        """Total number of commands in flight."""
        self._alone = False
        """True while the thread that receives requests itself waits for the only batch in
        flight."""
        self._ending = False
        self._sending = threading.Lock()
        self._fileno = sock.fileno()
        self._begun: Flight
        """Last batch whose single command the receiving thread has started itself."""
        self._early: list[Replies] = []
        """Replies prepared for the command that the receiving thread has started itself."""
        self._gone = False

    def run(self) -> None:
        """Execute requests until the client disconnects or sends an invalid request. Then wait for
        the requests in flight."""
        replies = threading.Thread(target=self._reply, name="ondie nbd replies", daemon=True)
        replies.start()
        try:
            super().run()
        finally:
            with self._changed:
                self._ending = True
                self._changed.notify_all()
            replies.join()

    def send(self, data: bytes | memoryview) -> None:
        with self._sending:
            super().send(data)

    def execute(self, count: int, commands: int, out: int, refused: int) -> None:
        """Submit the commands of the batch, and reply to the requests that have no command because
        of an error. The arguments are those of Session.execute."""
        batch = self.batch
        if self.served.detached:
            super().execute(count, commands, out, refused)
            return
        if count == commands == 1 and not refused and self._execute_alone(out):
            return
        if commands:
            with self._changed:
                while self._in_flight and self._in_flight + commands > self.served.depth:
                    self._changed.wait()  # back-pressure
                try:
                    stream = self._source.stream(batch.commands[:commands], batch.memory)
                except (InputError, KernelError):  # the service has ended
                    stream = None
                flight = Flight(batch, count, commands, stream)
                if stream is not None:
                    self._flights[batch.number] = flight
                    self._in_flight += commands
                    self._changed.notify_all()
            if stream is None:
                self.send(self._fail(flight))
        if refused:
            self.send(b"".join(
                self.reply(batch, request, 0)
                for request in batch.requests[:count].tolist() if request[ERROR]
            ))  # fmt: skip
        if commands and stream is not None:
            self._take_spare()

    def _execute_alone(self, out: int) -> bool:
        """Execute the only command of the batch in this thread, and reply to its request. Return
        True.

        Do nothing and return False if another client uses the drive, or if another batch is in
        flight. If another request arrives during the execution, the reply thread waits for the
        command instead. ``out``: end of the reply in the memory of the batch.
        """
        if self._flights:
            return False
        batch, handed_ns = self.batch, self.received_ns or time.perf_counter_ns()
        self.received_ns = 0
        try:
            status = self._source.try_single(batch.single, handed_ns, self._fileno, self._fly)
        except Exception as why:  # noqa: BLE001 - the client gets an error from the service's end
            if not isinstance(why, InputError | KernelError):
                show_exception("commands of NBD")
            return False
        if status == REFUSED:
            return False
        if status == IN_FLIGHT:
            self._end_alone()
        else:
            self._reply_single(out, status)
        return True

    def _reply_single(self, out: int, status: int) -> None:
        """Reply to the only request of the batch, whose command has completed with ``status``.
        ``out``: end of the reply in the memory of the batch."""
        batch = self.batch
        if not status and not self.served.marks:
            self.send(batch.view[batch.input : out])
            return
        request, error = batch.requests[0].tolist(), error_of(status) if status else 0
        if not error and self.clear_marks({0: request}):
            error = NbdError.EIO
        if error:
            self.served.count([0] * 8, 1)
        self.send(self.reply(batch, request, error))

    def _fly(self) -> Stream:
        """Register a batch in flight whose single command this thread has started; return the
        stream of completions of the batch."""
        batch = self.batch
        self._early.clear()
        stream = self._source.begun(batch.commands[:1], batch.memory, self._prepare)
        with self._changed:
            self._alone = True
            self._begun = self._flights[batch.number] = Flight(batch, 1, 1, stream)
            self._in_flight += 1
        return stream

    def _prepare(self, done: np.ndarray) -> None:
        """Prepare the replies for the completions ``done``, COMPLETION[n], of the command that the
        receiving thread has started itself."""
        self._early.append(self._replies(done))

    def _end_alone(self) -> None:
        """Reply to the request whose command this thread has started, if the command has completed;
        otherwise the reply thread replies later. Then continue with another batch."""
        data = b""
        try:
            with contextlib.suppress(TimeoutError):  # then it is in flight
                early = self._early
                data = self._written(early[0]) if early else self._take(self._source.next(0))
        except InputError:  # the service has ended
            data = self._fail(self._begun)
        finally:
            with self._changed:
                self._alone = False
                if self._flights or self._ending:
                    self._changed.notify_all()
        if data:
            self.send(data)
        self._take_spare()

    def _take_spare(self) -> None:
        """Continue with a batch that is not in flight, and move the received but unparsed bytes to
        this batch. Wait if all batches are in flight."""
        old = self.batch
        try:
            new = self._spare.get_nowait()
        except queue.Empty:
            if self._batches < MOST_BATCHES:
                new = Batch(self.served, self.largest, self._batches)
                self._batches += 1
            else:
                new = self._spare.get()  # back-pressure
        left = old.end - old.begin
        new.memory[:left] = old.memory[old.begin : old.end]
        new.begin, new.end = 0, left
        self.batch = new
        self.limits["tag"] = new.number << TAG_SHIFT

    # --- the thread of replies

    def _reply(self) -> None:
        """Reply to requests when they complete, until the session ends (main loop of the reply
        thread)."""
        while True:
            with self._changed:
                while self._alone or not (self._flights or self._ending):
                    self._changed.wait()
                if not self._flights:
                    return
            data = self._take(self._source.next())
            if data and not self._gone:
                try:
                    self.send(data)
                except OSError:
                    self._leave()

    def _leave(self) -> None:
        """Disconnect the client because a reply cannot be sent."""
        self._gone = True
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def _take(self, ticket: Ticket) -> bytes:
        """Wait for the completions of ``ticket``; return the replies to the requests that they
        complete."""
        with self._changed:  # a batch is known when it was handed over
            flights = self._flights
        try:
            done = ticket.wait()
        except Exception as why:  # noqa: BLE001 - the client gets an error
            if not isinstance(why, InputError | KernelError):
                show_exception("commands of NBD")
            flight = next(each for each in flights.values() if each.stream is ticket)
            return self._fail(flight)
        return self._written(self._replies(done))

    def _written(self, replies: Replies) -> bytes:
        """Remove the marks (Write Uncorrectable) of the ranges that completed requests have written
        or deallocated; return the replies as bytes. Requests fail if the removal of marks cannot be
        saved."""
        answers, completed = replies
        if self.served.marks:
            for at in self.clear_marks(completed):
                cookie, _, _, _, _, kind, *_ = completed[at]
                answers[at] = words.error_reply(kind, cookie, NbdError.EIO, self.structured)
                self.served.count([0] * 8, 1)
        return b"".join(answers)

    def _replies(self, done: np.ndarray) -> Replies:
        """Return the replies to the requests completed by ``done``, COMPLETION[n], and the fields
        of each request that completed without an error (see Replies)."""
        flights = self._flights
        replies: list[bytes] = []
        completed: dict[int, tuple[int, ...]] = {}
        for tag, status in zip(done["tag"].tolist(), done["status"].tolist(), strict=True):
            flight = flights[tag >> TAG_SHIFT]
            number = tag & (1 << TAG_SHIFT) - 1
            if status:
                flight.errors.setdefault(number, error_of(status))
            flight.left[number] -= 1
            if flight.left[number]:
                continue
            flight.waiting.remove(number)
            error = flight.errors.get(number, 0)
            if not error:
                completed[len(replies)] = flight.requests[number]
            replies.append(self.reply(flight.batch, flight.requests[number], error))
            if error:
                self.served.count([0] * 8, 1)
            if not flight.waiting:
                self._land(flight)
        return replies, completed

    def _fail(self, flight: Flight) -> bytes:
        """Return error replies to the requests of a batch that have no reply yet, because the drive
        does not execute them."""
        waiting = sorted(flight.waiting)
        self.served.count([0] * 8, len(waiting))
        replies = [
            self.reply(flight.batch, flight.requests[number], NbdError.EIO) for number in waiting
        ]
        self._land(flight)
        return b"".join(replies)

    def _land(self, flight: Flight) -> None:
        """Remove a completed batch from the batches in flight, and make it available for reuse."""
        with self._changed:
            if self._flights.pop(flight.batch.number, None) is None:
                return
            self._in_flight -= flight.commands
            if not self._alone:  # else nobody waits for it, and to wake a thread takes long
                self._changed.notify_all()
        self._spare.put(flight.batch)
