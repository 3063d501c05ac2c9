"""Plans of computation commands on the engine: several at the same time, each with the time that
its resources give, and longer beside commands that use the same ones.
Source: ISP rows: instructions / (cores x IPC x frequency); DRAM, channels and link of the preset.
"""

import threading
import time
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from ondie.emu.drive import Drive
from ondie.emu.engine.core import plan_rows
from ondie.emu.nvme import plan_queue
from ondie.emu.nvme.command import READ, WRITE, commands_of
from ondie.emu.paths.base import Rows
from ondie.emu.service import Service
from ondie.emu.states import device_program
from ondie.emu.states.resident import ResidentStates
from ondie.emu.units import InputError
from ondie.kernels import get
from tests.protocol.compute_host import ADAM, PARAMS, config

BLOCK = 4096
RATE = 4 * 0.8 * 1e9
"""Instructions per second of the cores of csd-pe."""
SECONDS = 60
"""Bound of every wait."""


class Bench:
    """A drive with states that runs plans and reads at the same time."""

    def __init__(self, params=PARAMS, **changes):
        self.states = ResidentStates(config(**changes), "adam", params, ADAM)
        self.drive = Drive(self.states.cfg, payload=True, reservoir=self.states.reservoir,
                           queue_depth=64)  # fmt: skip
        rng = np.random.default_rng(5)
        self.vectors = {name: np.abs(rng.normal(size=params)).astype(np.float32) for name in "wmv"}
        self.states.create(self.drive, self.vectors)
        self.gradient = rng.normal(size=params).astype(np.float32)
        self.text = rng.integers(0, 256, 128 * BLOCK, np.uint8)
        self.drive.buffer = self.text.copy()
        self.drive.submit(
            commands_of(
                [(WRITE, at * BLOCK, 16 * BLOCK, at * BLOCK, 0) for at in range(0, 128, 16)]
            )
        )
        self.drive.run()
        self.drive.flush()
        self.drive.completions()
        self.begin = self.drive.now

    def program(self, elements=1 << 14, instructions=0, read=0, written=0, element=4):
        """Start a program."""
        return self.drive.start_beside(
            device_program.execution(
                self.states.cfg, elements, element, Fraction(instructions), 0, read, written
            )
        )

    def reads(self, count=512):
        """Submit reads of single blocks, all at the same time."""
        rng = np.random.default_rng(6)
        self.sink = np.zeros(count * BLOCK, np.uint8)
        rows = [(READ, int(rng.integers(128)) * BLOCK, BLOCK, at * BLOCK, 0) for at in range(count)]
        commands = commands_of(rows)
        commands["arrival"] = self.drive.earliest_arrival
        self.drive.submit(commands, self.sink)

    def times(self, *plans):
        """Run to the end; return the time of each plan, and the mean of the reads, in seconds."""
        ends = [0] * len(plans)
        while not all(each.done for each in plans) or self.drive.outstanding:
            self.drive.run_until(None, 1)
            for at, each in enumerate(plans):
                if each.done and not ends[at]:
                    ends[at] = self.drive.now
        done = self.drive.completions()
        assert not done["status"].any()
        self.drive.check()
        took = [(each - self.begin) / 1e12 for each in ends]
        return [*took, float((done["end"] - done["start"]).mean()) / 1e12 if len(done) else 0.0]


def test_a_program_takes_the_time_of_its_instructions():
    """16384 elements of 100 instructions at 3.2e9 instructions per second."""
    bench = Bench()
    time, _ = bench.times(bench.program(instructions=100, read=4, written=4))
    expected = (1 << 14) * 100 / RATE
    assert expected <= time <= 1.01 * expected


def test_a_program_takes_the_time_of_its_bytes():
    """Little to compute: the DRAM is the bottleneck, at its bandwidth."""
    bench = Bench()
    time, _ = bench.times(bench.program(instructions=1, read=2048))
    expected = (1 << 14) * 2048 / bench.states.cfg.dram.bandwidth_bytes_per_s
    assert expected <= time <= 1.02 * expected


def test_two_programs_share_the_cores():
    """They begin together, and end after the work of both."""
    bench = Bench()
    one, other, _ = bench.times(bench.program(instructions=100), bench.program(instructions=100))
    expected = 2 * (1 << 14) * 100 / RATE
    assert 0.85 * expected < one <= other <= 1.01 * expected


@pytest.mark.parametrize("kind", ["DRAM", "cores", "copy"])
def test_programs_beside_reads(kind):
    """A program that needs DRAM, or a copy that needs dies and channels, and reads delay each
    other; a program that only computes and reads do not."""

    def start(bench):
        if kind == "copy":
            return bench.states.begin_copy(0, 128 * BLOCK)
        if kind == "DRAM":
            return bench.program(elements=1 << 14, instructions=1, read=8192)
        return bench.program(elements=1 << 14, instructions=1000)

    def reading():
        bench = Bench()
        bench.reads()
        bench.drive.run_until(bench.drive.now + 10**8)  # 100 us: they are on all dies
        bench.begin = bench.drive.now
        return bench

    alone = Bench()
    alone_s, _ = alone.times(start(alone))
    only, both = reading(), reading()
    (read_s,) = only.times()
    both_s, both_read_s = both.times(start(both))
    assert (both.sink == only.sink).all()
    if kind == "cores":
        assert both_s == pytest.approx(alone_s, rel=1e-3)
        assert both_read_s == pytest.approx(read_s, rel=1e-3)
    else:
        assert both_s > 1.01 * alone_s and both_read_s > read_s * (1.01 if kind == "copy" else 1)


def test_an_update_and_a_program_at_the_same_time():
    """Each gets its results; the update on the dies does not wait for the cores."""
    alone = Bench()
    update_s, _ = alone.times(alone.states.begin_update(alone.gradient))
    both = Bench()
    program = both.program(instructions=400)
    both_s, program_s, _ = both.times(both.states.begin_update(both.gradient), program)
    assert both_s == pytest.approx(update_s, rel=0.02)
    assert program_s == pytest.approx((1 << 14) * 400 / RATE, rel=0.02)
    get("adam", form="canonical")(
        both.vectors["w"], both.gradient, [both.vectors["m"], both.vectors["v"]],
        get("adam", form="canonical").coefficients(ADAM, 1),
    )  # fmt: skip
    for name, values in both.vectors.items():
        assert (both.states.stored(name) == values).all()


def test_reads_of_states_beside_an_update():
    """A read by address is served while the dies update; every stripe is old or new."""
    bench = Bench()
    update = bench.states.begin_update(bench.gradient)
    read = bench.states.begin_read(0, bench.states.bytes_of_all)
    bench.times(update, read)
    assert bench.states.complete and bench.drive.plan_done
    size = 4 * bench.states.n_params
    found = bench.states.stored_bytes(0, size).view(np.float32)
    assert (found == bench.states.stored("w")).all()


def test_a_copy_brings_the_bytes():
    """Of flash, of the data cache, of units that were never written, and of parts of units."""
    bench = Bench(cache__mode="write_back", cache__capacity="64 KiB")
    bench.drive.write(3 * BLOCK, bench.text[:BLOCK])
    wanted = bench.text.copy()
    wanted[3 * BLOCK : 4 * BLOCK] = bench.text[:BLOCK]
    bench.begin = bench.drive.now
    one, two = bench.states.begin_copy(0, 130 * BLOCK), bench.states.begin_copy(8, 4 * BLOCK)
    bench.times(one, two)
    found = bench.states.take_copy(0, 130 * BLOCK)
    assert (found[: 128 * BLOCK] == wanted).all() and not found[128 * BLOCK :].any()
    assert (bench.states.take_copy(8, 4 * BLOCK) == wanted[8 : 4 * BLOCK + 8]).all()


def test_copies_give_their_memory_back():
    """Whichever end first, and also of part of a mapping unit; a page that another copy needs stays
    until that one has taken its bytes."""
    bench = Bench()
    states, drive = bench.states, bench.drive

    def held():
        """Units of the drive's memory that are not zeros."""
        return np.flatnonzero(states.memory[0].any(axis=1)).tolist()

    copies = [(0, 4 * BLOCK), (2 * BLOCK, 4 * BLOCK), (20 * BLOCK, BLOCK), (30 * BLOCK + 512, 512)]
    for first, size in copies:
        states.begin_copy(first, size)
    drive.run()
    assert held() == [0, 1, 2, 3, 4, 5, 20, 30]
    for at, left in ((1, [0, 1, 2, 3, 20, 30]), (3, [0, 1, 2, 3, 20]), (0, [20]), (2, [])):
        first, size = copies[at]
        assert (states.take_copy(first, size) == bench.text[first : first + size]).all()
        assert held() == left


def test_a_transfer_takes_the_time_of_the_link():
    bench = Bench()
    plan = bench.drive.start_beside(device_program.transfer(1 << 24, to_host=False))
    time, _ = bench.times(plan)
    assert time == pytest.approx((1 << 24) / bench.states.cfg.link.down_bytes_per_s, rel=0.02)


# --- several plans


def joins(count, first=100):
    """A plan of its own: a chain of ``count`` joins that begins with a fence, in chunks of 7."""
    rows = Rows(first)
    after = rows.fence(0)
    for _ in range(count):
        after = rows.one(resource=plan_rows.JOIN, after0=after, after1=-1)
    every = rows.take()
    return (every[at : at + 7] for at in range(0, len(every), 7))


def test_plans_that_begin_while_others_run():
    bench = Bench()
    slow = bench.program(instructions=1000)
    bench.drive.run_until(bench.drive.now + 10**6)
    fast = bench.drive.start_beside(joins(5000))
    none = bench.drive.start_beside(iter(()))
    bench.drive.run_until(bench.drive.now + 10**6)
    assert fast.done and none.done and not slow.done
    bench.drive.run()
    assert slow.done and bench.drive.plan_done
    again = bench.drive.start_beside(joins(3))
    bench.drive.run()
    assert again.done


def test_plans_of_two_kinds_do_not_mix():
    bench = Bench()
    bench.drive.start(joins(3, bench.drive.next_row))
    with pytest.raises(InputError, match="excludes concurrent plans; wait until it has completed"):
        bench.drive.start_beside(joins(3))
    bench.drive.run()
    bench.program(instructions=10)
    with pytest.raises(InputError, match="a plan is running; wait until it is done"):
        bench.drive.start(joins(3))


# --- by a service


def test_a_service_runs_plans():
    """Its future ends with the plan; an error of its begin, a power cut and the end of the service
    are errors of the future, and the service goes on."""
    bench = Bench()
    drive = bench.drive
    with Service(drive) as service:
        begin = partial(bench.program, instructions=100)
        assert service.run_plan(begin, lambda: drive.now).result() > bench.begin
        with pytest.raises(KeyError):
            service.run_plan({}.popitem, int).result()
        with pytest.raises(KeyError):
            service.run_plan(begin, {}.popitem).result()
        cut = service.run_plan(begin, int)
        service.call(lambda: drive.power_cut(1)).result()
        if cut.exception() is not None:
            assert "the power was cut" in str(cut.exception())
        late = service.run_plan(begin, int)
        with pytest.raises(InputError):
            late.result()
        service.call(drive.power_on).result()
        service.call(lambda: bench.states.open(drive)).result()
        last = service.run_plan(begin, lambda: "done")
    assert last.result() == "done"
    with pytest.raises(InputError, match="has ended"):
        service.run_plan(begin, int)


def test_the_virtual_clock_stops_where_a_plan_ends():
    """Also when the drive has work of its own left, and nothing passes for a plan without work."""
    names = ("destage_idle", "power_loss_protection")
    cache = {f"cache__{name}": "true" for name in names} | {"cache__hold_up": "1 J"}
    bench = Bench(cache__mode="write_back", cache__capacity="2 MiB", **cache)
    drive = bench.drive
    with Service(drive) as service:
        rows = [(WRITE, at * BLOCK, BLOCK, 0, 0) for at in range(128)]
        service.submit(commands_of(rows), bench.text).result()
        begin, due = service.call(lambda: (drive.now, drive.next_event)).result()
        assert due < begin + 10**9  # it writes its cache to flash
        assert service.run_plan(lambda: drive.start_beside([]), lambda: drive.now).result() == begin
        plan = partial(bench.program, elements=1 << 10, instructions=32)
        end = service.run_plan(plan, lambda: drive.now).result()
        assert end - begin == (1 << 10) * 32 / RATE * 1e12
        assert service.call(lambda: drive.now).result() == end


def test_a_plan_ends_at_its_time_beside_commands():
    """Also if none of the commands has completed until then."""
    bench = Bench()
    drive, held, begun = bench.drive, threading.Event(), []
    with Service(drive) as service:
        service.call(held.wait)  # the thread takes both at the same time
        rows = [(WRITE, at * BLOCK, BLOCK, at * BLOCK, 0) for at in range(128)]
        batch = service.submit(commands_of(rows), bench.text)
        program = partial(bench.program, elements=1 << 10, instructions=32)
        plan = service.run_plan(lambda: (begun.append(drive.now), program())[1], lambda: drive.now)
        held.set()
        assert plan.result(SECONDS) - begun[0] == (1 << 10) * 32 / RATE * 1e12
        done = batch.result(SECONDS)
        assert not done["status"].any() and (done["end"] > plan.result()).all()


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_the_time_of_a_program_is_exact(clock):
    """Also if the drive has gone on: with a plan that takes longer, or because the service was late
    by 0.2 s of the wall clock."""
    bench = Bench()
    drive, begun = bench.drive, []
    longer = Rows(0)
    longer.add(1 << 13, resource=plan_rows.HOST_CPU, phase=0, array_ps=10**6)

    def start():
        begun.append((drive.now, bench.program(elements=1 << 10, instructions=320)))
        return begun[0][1]

    with Service(drive, clock) as service:
        other = service.run_plan(lambda: drive.start_beside([longer.take()]), int)
        plan = service.run_plan(start, lambda: drive.now)
        service.call(lambda: time.sleep(0.2))
        seen = plan.result(SECONDS)
        other.result(SECONDS)
    takes = (1 << 10) * 320 / RATE * 1e12
    assert begun[0][1].end_ps - begun[0][0] == takes
    assert seen - begun[0][0] > takes


def test_the_end_of_a_service_does_not_wait_for_the_wall_clock():
    """A program of 512 s completes at once; what would not end loads no more rows."""
    bench = Bench()
    with Service(bench.drive, "real") as service:
        long = service.run_plan(partial(bench.program, instructions=100_000_000),
                                lambda: bench.drive.now)  # fmt: skip
        service.call(int).result(SECONDS)
    assert long.result(SECONDS) >= (1 << 14) * 100_000_000 / RATE * 1e12


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_the_end_of_a_service_ends_plans(monkeypatch, clock):
    """After a bounded time, with the rows that have begun."""

    def endless():
        rows = Rows(0)
        while True:
            rows.add(1 << 12, resource=plan_rows.ISP, phase=0, array_ps=10**9)
            yield rows.take()

    monkeypatch.setattr(plan_queue, "LAST_S", 0.2)
    bench = Bench()
    with Service(bench.drive, clock) as service:
        plan = service.run_plan(lambda: bench.drive.start_beside(endless()), int)
    with pytest.raises(InputError, match="the service has ended"):
        plan.result(SECONDS)
    assert bench.drive.plan_done and bench.drive.idle
    bench.drive.check()


def test_a_power_cut_ends_the_plans():
    bench = Bench()
    with Service(bench.drive) as service:
        cut = service.run_plan(lambda: (bench.program(instructions=100),
                                        bench.drive.power_cut(2))[0], int)  # fmt: skip
        with pytest.raises(InputError, match="the power was cut"):
            cut.result()


def test_a_plan_with_the_clock_real():
    """It ends when the wall clock has reached its end; commands are served meanwhile."""
    bench = Bench()
    with Service(bench.drive, "real") as service:
        time.sleep(0.2)  # time that has passed is none of the plan's
        begin = time.perf_counter()
        plan = service.run_plan(partial(bench.program, instructions=10_000), int)
        plan.result(SECONDS)
        assert time.perf_counter() - begin >= (1 << 14) * 10_000 / RATE
        plan = service.run_plan(partial(bench.program, instructions=100_000_000), int)  # 512 s
        sink = np.zeros(BLOCK, np.uint8)
        for _ in range(3):
            service.submit(commands_of([(READ, 0, BLOCK, 0, 0)]), sink).result(SECONDS)
            assert (sink == bench.text[:BLOCK]).all() and not plan.done()
        service.call(lambda: bench.drive.power_cut(0)).result(SECONDS)
        with pytest.raises(InputError, match="the power was cut"):
            plan.result(SECONDS)
