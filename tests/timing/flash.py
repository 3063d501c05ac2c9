"""Owns: flash alone, without FTL or host, and three verbs: issue, probe, assert_ready_at.
Does not: know what anything takes; a test carries its arithmetic.
Source: STYLE of tests/timing/harness.py, whose round numbers it shares.
"""

from typing import Any

import numpy as np

from ondie.emu.clock import NEVER
from ondie.emu.engine.core.counters import ERASE_SUSPENSIONS, PROGRAM_SUSPENSIONS
from ondie.emu.engine.core.state import Arrays
from ondie.emu.engine.run import build
from ondie.emu.nand import channel as nand
from ondie.emu.nand import raw_jobs as physical
from ondie.emu.nand.timing import COPYBACK, ERASE, PROGRAM, READ
from tests.timing import harness as h

LEAVES = h.TIMES | {
    "flash.cell": "SLC",
    "flash.cache_read": "false",
    "flash.cache_program": "false",
    "pe.kind": "none",
    "ftl.reservoir_fraction": "0",
    "ftl.block_unit": "plane",
}
MOVES = (READ, PROGRAM)
"""Operations whose data cross the channel."""


class Flash:
    """Operations by place and time of arrival. All are issued before the clock is run.

    One channel of one die of two planes, unless ``changes`` (flash__channels=2 and the like).
    """

    def __init__(self, **changes: Any) -> None:
        self.cfg = h.preset(LEAVES, **changes)
        self._jobs: list[dict[str, int]] = []
        self._arrays: Arrays | None = None

    @property
    def arrays(self) -> Arrays:
        """The engine's state; it takes what has been issued when first asked for."""
        if self._arrays is None:
            jobs = self._jobs
            self._arrays = build.build(self.cfg, devices=1, phases=1, jobs=len(jobs), timeline=999)
            columns = {name: np.array([j[name] for j in jobs], np.int64) for name in jobs[0]}
            usual = np.array([physical.QUEUED[j["op"]] for j in jobs])
            columns["queue"] = np.where(columns["queue"] >= 0, columns["queue"], usual)
            order = physical.load_arrivals(self._arrays, **columns)
            self._place = np.argsort(order)
            self._state = self._arrays.handle()
        return self._arrays

    def issue(
        self,
        op: int,
        die: int = 0,
        plane: int = 0,
        at: int = 0,
        *,
        planes: int = 0,
        page: int = -1,
        queue: int = -1,
        size: int = h.PAGE,
        more: int = 0,
        second: int = 0,
    ) -> int:
        """An operation arrives; ``planes`` are bits instead of one ``plane``. Returns its id."""
        planes = planes or 1 << plane
        self._jobs.append(
            {
                "at": at,
                "die": die,
                "op": op,
                "planes": planes,
                "page": page,
                "queue": queue,
                "bus": size * planes.bit_count() if op in MOVES else 0,
                "more": more,
                "second": second,
            }
        )
        return len(self._jobs) - 1

    def read(self, die: int = 0, plane: int = 0, at: int = 0, **more: Any) -> int:
        return self.issue(READ, die, plane, at, **more)

    def program(self, die: int = 0, plane: int = 0, at: int = 0, **more: Any) -> int:
        return self.issue(PROGRAM, die, plane, at, **more)

    def erase(self, die: int = 0, plane: int = 0, at: int = 0, **more: Any) -> int:
        return self.issue(ERASE, die, plane, at, **more)

    def copyback(self, die: int = 0, plane: int = 0, at: int = 0, **more: Any) -> int:
        return self.issue(COPYBACK, die, plane, at, **more)

    def word_line(self, pages: int, die: int = 0, at: int = 0, **more: Any) -> list[int]:
        """Programs of the pages of one word line, handed over as one."""
        first = more.pop("page", 0)
        return [
            self.program(die, at=at, page=first + i, more=pages - 1 if i == 0 else -1, **more)
            for i in range(pages)
        ]

    def run_to(self, t: int = NEVER - 1) -> None:
        """Act on all events up to and including ``t`` ps."""
        _ = self.arrays
        physical.run(self._state, 0, t)
        assert self.arrays.reg["error"][0] == 0

    def done(self, job: int) -> bool:
        """Probe: is the operation done?"""
        return bool(self.arrays.job["end"][self._place[job]] >= 0)

    def end(self, job: int) -> int:
        """When it was done, ps."""
        assert self.done(job), "it never ends"
        return int(self.arrays.job["end"][self._place[job]])

    def ends(self, *jobs: int) -> list[int]:
        """When operations were done, after everything has run."""
        self.run_to()
        return [self.end(job) for job in jobs]

    def assert_ready_at(self, job: int, t: int) -> None:
        """The operation is not done one picosecond before ``t``, and done at ``t``."""
        self.run_to(t - 1)
        assert not self.done(job), f"done at {self.end(job)} already, {t} is right"
        self.run_to(t)
        if not self.done(job):
            self.run_to()
            raise AssertionError(f"done at {self.end(job)} only, {t} is right")
        assert self.end(job) == t

    def suspends(self) -> tuple[int, int]:
        """(programs, erases) that have made way."""
        count = self.arrays.count[0]
        return int(count[PROGRAM_SUSPENSIONS]), int(count[ERASE_SUSPENSIONS])

    def check_at_rest(self) -> None:
        """Nothing is left behind: no power held, no die or channel at work, all transactions
        back."""
        a = self.arrays
        assert int(a.dev["power"][0]) == 0 and int(a.dev["first"][0]) == 0
        for name in ("arr", "cache", "paused", "loading"):
            assert (a.die[name] == -1).all(), name
        for name in ("waiting", "alone", "power", "on_bus", "want"):
            assert (a.die[name] == 0).all(), name
        assert (a.bus["phase"] == nand.NONE).all() or (a.bus["quiet"] != 0).any()
        assert int(a.reg["txns_free"][0]) == len(a.txn)


if __name__ == "__main__":  # fills the compile cache, so that no test's clock pays for it
    first = Flash()
    first.read()
    first.run_to()
