"""Worker processes of trainings: started together, ended together.

Owns how they are started, interrupted and missed. Does not own what they do (formats.py,
errors.py). Source: own; concurrent.futures with processes that are spawned.
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


@contextmanager
def pool(suite: str, jobs: int) -> Iterator[Runner]:
    """``jobs`` processes; run(work, [arguments, ...]) yields (arguments, work(*arguments)) in the
    order in which they are done. InputError when a process was killed; none is left then, nor after
    an interrupt."""
    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, _follow) as processes:

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
            if isinstance(error, BrokenProcessPool):
                raise InputError(
                    f"{suite}: a training was killed, as where memory is short"
                ) from error
            raise


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started in here do not hear an interrupt, which is for this one: it waits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow() -> None:
    """End with the parent, however that ends: nothing else tells a worker of a pool."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
