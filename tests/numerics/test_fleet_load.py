"""Is work under load done when it should be, and is a wrong load or member refused?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.cluster import membership as members
from ondie.emu.cluster.load import record as recorded
from ondie.emu.cluster.load.on_off import Spells
from ondie.emu.cluster.load.trace import Load, Pace
from ondie.emu.cluster.membership import DIES, JOINS, LEAVES, Member
from ondie.emu.units import InputError

CORES = 8
changes = st.lists(
    st.tuples(st.floats(0, 50), st.integers(0, 3), st.integers(0, CORES - 1)), max_size=20
)


def load(found):
    types = (float, int, float)
    return Load(*(np.array([row[i] for row in found], t) for i, t in enumerate(types)))


def linear(left, node):
    return left


def plainly(found, node, start, work):
    """When work is done, change after change."""
    mine = sorted((c for c in found if c[1] == node), key=lambda c: c[0])
    pace, now = 1.0, start
    for at, _, cores in mine:
        if at > now:
            if work <= (at - now) * pace:
                return now + work / pace
            work -= (at - now) * pace
            now = at
        pace = 1 - cores / CORES
    return now + work / pace


@given(changes, st.lists(st.lists(st.floats(0, 30), min_size=4, max_size=4), max_size=6))
def test_work_ends_as_change_after_change_says(found, steps):
    pace = Pace(load(found), np.full(4, CORES), linear)
    now = 0.0
    for work in steps:
        end = pace.finish(np.full(4, now), np.array(work))
        expected = [plainly(found, node, now, w) for node, w in enumerate(work)]
        assert end == pytest.approx(expected, rel=1e-9, abs=1e-9)
        now = float(end.max())


def test_shares_are_those_at_the_last_start():
    pace = Pace(load([(5.0, 1, 6), (9.0, 1, 0)]), np.full(2, CORES), linear)
    pace.finish(np.zeros(2), np.ones(2))
    assert pace.left().tolist() == [1, 1]
    pace.finish(np.full(2, 5.0), np.ones(2))
    assert pace.left().tolist() == [1, 0.25]
    pace.finish(np.full(2, 9.0), np.ones(2))
    assert pace.left().tolist() == [1, 1]


def test_work_without_cores_waits_for_them_or_for_ever():
    pace = Pace(load([(2.0, 0, 8), (10.0, 0, 0), (2.0, 1, 8)]), np.full(2, CORES), linear)
    assert pace.finish(np.zeros(2), np.full(2, 3.0)).tolist() == [11.0, np.inf]


def test_drawn_load_takes_its_share_of_the_time():
    found = Spells(100.0, 0.3, seed=1).until(10_000.0, np.full(200, CORES))
    busy = np.zeros(200)
    for node in range(200):
        its = found.node == node
        at, cores = found.seconds[its], found.cores[its]
        order = np.argsort(at, kind="stable")
        at, cores = np.clip(at[order], 0, 10_000), cores[order]
        busy[node] = (np.diff(at, append=10_000.0) * (cores > 0)).sum()
    assert busy.mean() / 10_000 == pytest.approx(0.3, rel=0.05)
    assert found.cores.max() == CORES - 1 and found.cores.min() == 0
    again = Spells(100.0, 0.3, seed=1).until(10_000.0, np.full(200, CORES))
    assert np.array_equal(found.seconds, again.seconds)


def test_a_file_of_load_is_read_as_it_was_written(tmp_path):
    found = load([(0.5, 1, 4), (7.25, 0, 6), (9.0, 1, 0)])
    (tmp_path / "load.csv").write_text(found.text())
    back = Load.read(tmp_path / "load.csv")
    assert [getattr(back, name).tolist() for name in ("seconds", "node", "cores")] == [
        getattr(found, name).tolist() for name in ("seconds", "node", "cores")
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "seconds,node,cores"),
        ("time,node,cores\n", "its first line must be seconds,node,cores"),
        ("seconds,node,cores\n1,2\n", "line 2"),
        ("seconds,node,cores\n1,0,2\n1,x,2\n", "line 3"),
        (f"seconds,node,cores\n1,{2**63},2\n", "line 2"),
        (f"seconds,node,cores\n1,-{10**30},2\n", "line 2"),
        (f"seconds,node,cores\n1,0,{'x' * 200_000}\n", "cannot be read"),
    ],
)
def test_a_wrong_file_of_load_is_refused(tmp_path, text, told):
    (tmp_path / "load.csv").write_text(text)
    with pytest.raises(InputError, match=told):
        Load.read(tmp_path / "load.csv")
    with pytest.raises(InputError, match=r"none\.csv: cannot be read"):
        Load.read(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ((1.0, 4, 1), "load on node 4: node must be from 0 to 3"),
        ((1.0, 0, 9), "cores = 9: must be from 0 to 8"),
        ((-1.0, 0, 1), "at least 0"),
        ((float("nan"), 0, 1), "at least 0"),
    ],
)
def test_a_load_of_other_nodes_is_refused(change, told):
    with pytest.raises(InputError, match=told):
        Pace(load([change]), np.full(4, CORES), linear)


@pytest.mark.parametrize("share", [0, 1, float("nan")])
def test_a_share_of_nothing_or_all_is_refused(share):
    with pytest.raises(InputError, match="between 0 and 1"):
        Spells(1.0, share, 0)


@given(
    st.integers(0, 2**70),
    st.floats(0.05, 0.95),
    # A stopped node takes any work to its spell's end: less than sums resolve is not asked.
    st.lists(
        st.tuples(st.floats(0, 60), st.just(0.0) | st.floats(1e-3, 30)), min_size=1, max_size=6
    ),
)
def test_spells_drawn_by_and_by_are_those_drawn_at_once(seed, share, steps):
    spells, cores = Spells(10.0, share, seed), np.array([1, 2, 4, 8])
    one = spells.pace(cores, linear)
    two = Pace(spells.until(2_000.0, cores), cores, linear)
    now = 0.0
    for wait, work in steps:
        start, todo = now + np.full(4, wait), work * np.array([0.1, 1.0, 0.5, 0.0])
        end = one.finish(start, todo)
        if end.max() > 2_000:
            break
        assert end == pytest.approx(two.finish(start, todo), rel=1e-9)
        assert one.left().tolist() == two.left().tolist()
        now = float(end.max())


def test_too_many_spells_are_refused():
    with pytest.raises(InputError, match=r"about 4e\+03 spells on 4 nodes .* 2 s or more"):
        Spells(0.1, 0.2, 0, most=200).check(4, 500.0)
    pace = Spells(0.1, 0.2, 0, most=200).pace(np.full(4, 8), linear)
    pace.finish(np.zeros(4), np.ones(4))
    with pytest.raises(InputError, match="spells on 4 nodes"):
        pace.finish(np.full(4, 500.0), np.ones(4))


# --- recorded


def test_busy_cores_are_recorded():
    times = iter([0.0, 1.0, 2.0, 3.0])
    ticks = iter([(0, 0), (100, 300), (500, 300), (500, 700)])  # busy, idle

    def read():
        busy, idle = next(ticks)
        return f"cpu  {busy} 0 0 {idle - idle // 4} {idle // 4} 0 0 0 {busy} 0\ncpu0 1 1\n"

    found = recorded.record(
        3.0, 1.0, 2, cores=4, read=read, clock=lambda: next(times), sleep=lambda s: None
    )
    assert found.seconds.tolist() == [0, 1, 2, 3]
    assert found.cores.tolist() == [1, 4, 0, 0]
    assert found.node.tolist() == [2] * 4


def test_a_machine_without_counters_is_told():
    with pytest.raises(InputError, match="must be 'cpu' and the ticks of all cores"):
        recorded.counted("intr 1 2 3")
    with pytest.raises(InputError, match="cannot be read"):
        recorded.record(1.0, 1.0, read=lambda: open("/none").read())
    with pytest.raises(InputError, match="--every 0"):
        recorded.record(1.0, 0.0)


# --- members


def test_members_come_in_time_and_in_turn():
    given_ = [Member(9, 2, JOINS), Member(1, 1, DIES), Member(3, 2, LEAVES)]
    assert [e.seconds for e in members.ordered(given_, 3, 1)] == [1, 3, 9]
    assert members.absent(members.ordered([Member(9, 2, JOINS)], 3, 1)) == [2]
    assert members.absent(members.ordered(given_, 3, 1)) == []


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([Member(1, 0, DIES)], "drives are nodes 1 to 2"),
        ([Member(1, 3, DIES)], "drives are nodes 1 to 2"),
        ([Member(-1, 1, DIES)], "at least 0"),
        ([Member(1, 1, DIES), Member(2, 1, LEAVES)], "absent at that time"),
        ([Member(1, 1, JOINS), Member(2, 1, JOINS)], "is present at that time"),
    ],
)
def test_members_out_of_turn_are_refused(events, told):
    with pytest.raises(InputError, match=told):
        members.ordered(events, 3, 1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("node,event\n", "its first line must be seconds,node,event"),
        ("seconds,node,event\n1,2\n", "line 2"),
        (f"seconds,node,event\n1,{2**63},dies\n", "line 2"),
        (f"seconds,node,event\n1,{-(2**63) - 1},dies\n", "line 2"),
        (f"seconds,node,event\n1,2,{'x' * 200_000}\n", "cannot be read"),
        ("seconds,node,event\n1,2,dyes\n", "line 2: event 'dyes'.*nearest: dies"),
    ],
)
def test_a_wrong_file_of_members_is_refused(tmp_path, text, told):
    (tmp_path / "members.csv").write_text(text)
    with pytest.raises(InputError, match=told):
        members.read(tmp_path / "members.csv")


def test_a_file_of_members(tmp_path):
    (tmp_path / "members.csv").write_text("seconds,node,event\n1.5,2,dies\n3,1,leaves\n")
    assert members.read(tmp_path / "members.csv") == (Member(1.5, 2, DIES), Member(3.0, 1, LEAVES))
