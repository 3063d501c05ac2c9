"""Worker processes that run independent work in parallel.

Owns the start of the processes, their termination after an interrupt, and the detection of a killed
process. Does not own the work: training runs (studies/), simulations of a calibration
(calibrate/fit.py).
Source: this project; concurrent.futures with spawned processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from ondie.emu.units import InputError

Runner = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterator[tuple[Any, Any]]]
JOIN_S = 10.0
"""Longest time to wait until the thread that manages the workers ends, seconds."""


@contextmanager
def pool(suite: str, jobs: int) -> Iterator[Runner]:
    """Start ``jobs`` worker processes and yield a function ``run`` that runs work on them.

    ``run(work, [arguments, ...])`` calls ``work(*arguments)`` for each tuple of arguments in a
    worker process, and yields (arguments, result) in the order of completion. ``suite``: name of
    the work, for error messages. Raises InputError if a process was killed. All workers are
    terminated on an error or interrupt.
    """
    others, threads = set(multiprocessing.active_children()), set(threading.enumerate())
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, end_with_parent) as processes:

        def run(
            work: Callable[..., Any], wanted: Sequence[tuple[Any, ...]]
        ) -> Iterator[tuple[Any, Any]]:
            with _deaf():
                waiting = {processes.submit(work, *arguments): arguments for arguments in wanted}
            for done in as_completed(waiting):
                yield waiting[done], done.result()

        try:
            yield run
        except BaseException as error:
            processes.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            for thread in set(threading.enumerate()) - threads:
                if not thread.daemon:  # at its end, Python would write to a pipe that this closes
                    thread.join(JOIN_S)
            if isinstance(error, BrokenProcessPool):
                raise InputError(
                    f"{suite}: a worker process was killed, probably because of insufficient "
                    "memory; use fewer worker processes"
                ) from error
            raise


@contextmanager
def _deaf() -> Iterator[None]:
    """Block SIGINT and SIGHUP in the processes that are started inside this context.

    A terminal sends these signals to all processes, but only the parent handles them. In the
    parent, they remain pending until the context ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Start a thread that terminates this worker process when its parent process ends, even if the
    parent was killed.

    ProcessPoolExecutor does not stop the workers of a killed parent.
    """

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
