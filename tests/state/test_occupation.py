"""MQSim's preconditioning: which pages hold data, on which blocks, and that the drive goes on."""

import numpy as np
import pytest

from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl.invariants import check_between_events
from ondie.emu.nand.geometry import Geometry
from ondie.emu.replay.mqsim.flows import flows
from ondie.emu.replay.mqsim.initial_occupancy import occupied
from ondie.emu.replay.mqsim.run import read_pair
from ondie.emu.replay.mqsim.to_engine import prepared, simulate
from ondie.emu.units import InputError
from tests.config.mqsim_files import TRACE, drive_xml, flow_xml, put, workload_xml
from tests.smoke.test_cli_mqsim import DRIVE, FLOW

PLANES, BLOCKS, PAGES = 4, 64, 16
SMALL = DRIVE | {
    "Enabled_Preconditioning": "true",
    "Block_No_Per_Plane": str(BLOCKS),
    "GC_Exec_Threshold": "0.4",
    "Overprovisioning_Ratio": "0.5",
}


@pytest.fixture
def made(tmp_path):
    """The drive and the flows of a workload; flows are (base, changes)."""

    def make(*given, **drive):
        put(tmp_path / "ssd.xml", drive_xml(**(SMALL | drive)))
        texts = []
        for changes in given:
            base = TRACE if "File_Path" in changes else None
            own = {k: v for k, v in FLOW.items() if base is None or k in base}
            extra = () if base is None else (base,)
            texts.append(flow_xml(*extra, **(own | changes)))
        put(tmp_path / "w.xml", workload_xml(texts))
        found, scenarios = read_pair(tmp_path / "ssd.xml", tmp_path / "w.xml")
        return found, flows(found, scenarios[0])

    return make


def held(arrays, stream):
    """Pages of a stream that hold data, from 0."""
    zone = arrays.zone[stream]
    return np.flatnonzero(arrays.l2p[0, int(zone.first_lpn) : int(zone.last_lpn)])


def test_so_many_pages_in_steady_state(made):
    """60 % of 2,048 pages, none twice. Half of the 25 blocks at which collection starts, less the
    three that are open from the start, are free in each plane, and what rounding down by the
    number of valid pages left over, less than one block for each of 17; the rest is full."""
    drive, made_flows = made({"Initial_Occupancy_Percentage": "60", "Read_Percentage": "0"})
    cfg, arrays = prepared(drive, made_flows, frozenset())
    check_between_events(arrays, Geometry.of(cfg))
    assert len(held(arrays, 0)) == int(0.6 * PLANES * BLOCKS * PAGES * 0.5) == 1228
    free = arrays.pool["free_n"]
    assert (free >= 12 - 3).all() and (free < 12 - 3 + 17).all()
    state = arrays.block["state"]
    assert (state == mapping.FULL).sum() > PLANES * 0.6 * BLOCKS
    valid = arrays.valid[state == mapping.FULL]
    assert valid.std() > 1 and valid.min() < valid.mean() < valid.max()
    assert not arrays.block["erases"].any() and (arrays.front["block"] >= 0).all()


def test_the_first_pages_that_the_flow_touches(made):
    """Its own addresses, drawn again: what it writes first is what is there."""
    drive, (flow,) = made({"Initial_Occupancy_Percentage": "30", "Read_Percentage": "0"})
    (found,) = occupied(drive, [flow], [2048])
    wanted = int(0.3 * 2048)
    requests = np.concatenate(list(flow.chunks()))  # 900 of them, fewer than it takes
    touched = list(dict.fromkeys((requests["offset"] // 4096).tolist()))
    assert len(found.lpns) == wanted and (np.diff(found.lpns) > 0).all()
    if len(touched) >= wanted:
        assert set(touched[:wanted]) == set(found.lpns.tolist())
    else:
        assert set(touched) < set(found.lpns.tolist())
    assert len(found.regions) == 1 and not found.sequential


def test_a_working_set_that_is_too_small_is_left(made):
    """70 % of the drive cannot lie in half of it; 30 % do."""
    for share, inside in (("70", False), ("30", True)):
        drive, (flow,) = made(
            {"Initial_Occupancy_Percentage": share, "Working_Set_Percentage": "50"}
        )
        (found,) = occupied(drive, [flow], [2048])
        assert len(found.lpns) == int(int(share) / 100 * 2048)
        assert (found.lpns.max() <= 1024) == inside
    drive, (flow,) = made({"Initial_Occupancy_Percentage": "100"})
    np.testing.assert_array_equal(occupied(drive, [flow], [2048])[0].lpns, np.arange(2048))


def test_hot_and_cold(made):
    """A fifth of the addresses gets four fifths of the writes: more of the hot pages are there."""
    drive, (flow,) = made(
        {
            "Initial_Occupancy_Percentage": "50",
            "Working_Set_Percentage": "100",
            "Address_Distribution": "RANDOM_HOTCOLD",
            "Percentage_of_Hot_Region": "20",
        }
    )
    (found,) = occupied(drive, [flow], [2048])
    hot, cold = found.regions
    assert hot.writes == 0.8 and cold.writes == pytest.approx(0.2)
    inside = (found.lpns < 0.2 * 2048).mean()
    assert hot.share == pytest.approx(inside) and 0.3 < inside < 0.41
    cfg, arrays = prepared(drive, [flow], frozenset())
    check_between_events(arrays, Geometry.of(cfg))


def test_a_stream_in_order(made):
    drive, (flow,) = made(
        {"Initial_Occupancy_Percentage": "40", "Address_Distribution": "STREAMING"}
    )
    (found,) = occupied(drive, [flow], [2048])
    assert found.sequential and len(found.lpns) == int(0.4 * 2048)
    assert (np.diff(found.lpns) != 1).sum() <= 1  # from somewhere on, round the end
    cfg, arrays = prepared(drive, [flow], frozenset())
    check_between_events(arrays, Geometry.of(cfg))


def test_a_trace(made, tmp_path):
    """Pages that it reads before those that it only writes, then others."""
    path = tmp_path / "a.trace"
    lines = [(page, page % 2) for page in range(200)]  # odd pages are read
    path.write_text("".join(f"{i} 0 {page * 8} 8 {op}\n" for i, (page, op) in enumerate(lines)))
    for share, check in (
        ("4", lambda lpns: set(lpns) <= set(range(1, 200, 2))),
        ("8", lambda lpns: set(range(1, 200, 2)) < set(lpns) < set(range(200))),
        ("50", lambda lpns: set(range(200)) < set(lpns)),
    ):
        drive, (flow,) = made({"File_Path": str(path), "Initial_Occupancy_Percentage": share})
        (found,) = occupied(drive, [flow], [2048])
        assert len(found.lpns) == int(int(share) / 100 * 2048)
        assert check(found.lpns.tolist()), share


def test_two_flows_keep_to_their_blocks(made):
    """On shared planes, on planes of their own, and one that holds nothing."""
    for ids, share in ((("0,1", "0,1"), "30"), (("0", "1"), "30"), (("0,1", "0,1"), "0")):
        drive, made_flows = made(
            {"Channel_IDs": ids[0], "Initial_Occupancy_Percentage": "60"},
            {"Channel_IDs": ids[1], "Initial_Occupancy_Percentage": share, "Seed": "5"},
            Block_No_Per_Plane="96",
        )
        cfg, arrays = prepared(drive, made_flows, frozenset())
        check_between_events(arrays, Geometry.of(cfg))
        per_flow = int(arrays.zone["last_lpn"][0] - arrays.zone["first_lpn"][0])
        assert [len(held(arrays, i)) for i in (0, 1)] == [
            int(0.6 * per_flow),
            int(int(share) / 100 * per_flow),
        ]
        for i in (0, 1):
            lpns = held(arrays, i) + int(arrays.zone["first_lpn"][i])
            blocks = (arrays.l2p[0, lpns].astype(np.int64) - 1) // PAGES
            assert set(np.unique(arrays.block["stream"][blocks])) <= {i, 2 + i}
        done = simulate(drive, made_flows, frozenset())
        assert [len(r) for r in done.requests] == [900, 900]


def test_a_run_after_it_collects_from_the_start(made):
    """1,500 writes are less than an empty drive has room for."""
    writes = {"Read_Percentage": "0", "Total_Requests_To_Generate": "1500",
              "Initial_Occupancy_Percentage": "90", "Working_Set_Percentage": "100"}  # fmt: skip
    full = simulate(*made(writes), frozenset())
    empty = simulate(*made(writes, Enabled_Preconditioning="false"), frozenset())
    assert full.counters["gc_writes"] > 500 and empty.counters["gc_writes"] == 0
    assert full.counters["erases"] > 90


def test_a_seed_is_a_drive(made):
    states = []
    for seed in ("1", "1", "2"):
        drive, made_flows = made({"Initial_Occupancy_Percentage": "60", "Seed": seed})
        _, arrays = prepared(drive, made_flows, frozenset())
        states.append(arrays.l2p.tobytes() + arrays.block.tobytes())
    assert states[0] == states[1] != states[2]


def test_without_room(made):
    drive, made_flows = made({"Initial_Occupancy_Percentage": "100"}, Overprovisioning_Ratio="0.05")
    with pytest.raises(InputError, match="would free no space; use fewer than"):
        prepared(drive, made_flows, frozenset())
