"""Drawn pairs with --quirks, one for each cause that once made their results differ from MQSim's.

MQSim's figures: commit 7ec40e3, one run of each pair of files; one collects garbage. `pairs.json`
has the parameters that differ from tests/config/mqsim_files.py, and the mean response times in us.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from ondie.emu.replay.mqsim import outstanding, quirks, start_order
from ondie.emu.replay.mqsim import to_engine as simulate
from ondie.emu.replay.mqsim.address_partition import working_set
from ondie.emu.replay.mqsim.flows import flows as make_flows
from ondie.emu.replay.mqsim.run import read_pair
from tests.config.mqsim_files import SYNTHETIC, drive_xml, flow_xml, workload_xml

PAIRS = json.loads((Path(__file__).parent / "mqsim" / "drawn_pairs.json").read_text())


def means(tmp_path, name, without=()):
    """Return (mean response times in us, those of MQSim)."""
    pair = PAIRS[name]
    paths = tmp_path / "ssd.xml", tmp_path / "load.xml"
    paths[0].write_text(drive_xml(**pair["drive"]))
    paths[1].write_text(workload_xml([flow_xml(SYNTHETIC, **each) for each in pair["flows"]]))
    drive, scenarios = read_pair(*paths)
    names = quirks.obeyed(True) - set(without)
    done = simulate.played(drive, make_flows(drive, scenarios[0], names, []), names)
    found = [float((each["end"] - each["start"]).mean()) / 1e6 for each in done.requests]
    return found, pair["means"]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", PAIRS)
def test_mean_response_times_are_those_of_mqsim(tmp_path, name):
    """Within 0.1 %."""
    found, expected = means(tmp_path, name)
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "quirk"),
    [
        ("four flows, a rounded random number", "start_order"),
        ("a flow that begins inside a page, with a cache", "pages_of_flows"),
        ("entries of a preconditioned mapping cache", "warm_map"),
        ("requests that pass the end of the working set", "wrapped_requests"),
        ("a mapping cache that loses requests", "lost_map_entries"),
        ("a cache with reads of unwritten pages", "unwritten_slot"),
        ("polled classes with a cached map", "polling"),
        ("translation pages that are written back while they are read", "mapping_writes"),
        ("reads and evictions of pages in flight", "unwritten_slot"),
        ("partial writes of pages whose sectors the stored map forgets", "forgotten_sectors"),
    ],
)
def test_each_quirk_matters(tmp_path, name, quirk):
    """Without the quirk, a mean differs by more than 0.3 %."""
    found, expected = means(tmp_path, name, [quirk])
    assert max(abs(a / b - 1) for a, b in zip(found, expected, strict=True)) > 0.003


def test_hash_of_the_gnu_library():
    """MurmurHash2 of 64 bits with the library's seed; an order that MQSim's run of pair 0 shows."""
    names = [f"Host.IO_Flow.Synth.No_{i}" for i in range(4)]
    chips = [f"SSDDevice.Channel.{c}.Chip.{k}" for c in range(8) for k in range(4)]
    parts = ("PHY", "FTL", "FTL.TSU", "FTL.AddressMappingUnit", "FTL.GCandWLUnit", "DataCache")
    before = ["SSDDevice", *chips, *(f"SSDDevice.{part}" for part in parts)]
    before += ["SSDDevice.HostInterface", "Host", "Host.PCIeLink"]
    entries, buckets = start_order.table(before + names)
    order = sorted(range(4), key=lambda i: entries.index(start_order.hash_of(names[i])))
    assert (order, buckets) == ([2, 1, 0, 3], 59)


NAMES_OF_SIXTEEN = {"Flash_Channel_Count": "8", "Chip_No_Per_Channel": "2"}


def scenarios_of_four_flows(tmp_path):
    """Return (drive, scenarios) of 16 chips and two scenarios with four flows each."""
    paths = tmp_path / "ssd.xml", tmp_path / "load.xml"
    paths[0].write_text(drive_xml(**NAMES_OF_SIXTEEN))
    flow = {"Channel_IDs": "0,1", "Chip_IDs": "0,1", "Total_Requests_To_Generate": "40"}
    flow["Synthetic_Generator_Type"] = "QUEUE_DEPTH"
    flows = [flow_xml(SYNTHETIC, **flow)] * 4
    paths[1].write_text(workload_xml(flows, flows))
    return read_pair(*paths)


def test_start_order_of_later_scenarios(tmp_path):
    """The table keeps its buckets: order of a hash table of the GNU library, cleared once."""
    drive, scenarios = scenarios_of_four_flows(tmp_path)
    orders = []
    for scenario in scenarios:
        flows = make_flows(drive, scenario, frozenset(), [])
        assert {flow.scenario for flow in flows} == {scenario.number}
        orders.append(start_order.start_order(drive, flows, scenario.number))
    assert orders == [[3, 0, 1, 2], [2, 1, 0, 3]]


def test_flows_start_in_the_order_of_their_scenario(tmp_path, monkeypatch):
    """The engine gets the flows of scenario 2 in the order of scenario 2."""
    drive, scenarios = scenarios_of_four_flows(tmp_path)
    asked = []
    order = start_order.start_order
    monkeypatch.setattr(simulate, "start_order", lambda *a: asked.append(a[2]) or order(*a))
    names = quirks.obeyed(True)
    simulate.played(drive, make_flows(drive, scenarios[1], names, []), names)
    assert asked == [2]


def test_transactions_for_negative_sizes(tmp_path):
    """8 sectors with a deviation of 4: values below -1 are 1.2 % (normal distribution)."""
    pair = PAIRS["negative sizes in an open loop"]
    paths = tmp_path / "ssd.xml", tmp_path / "load.xml"
    paths[0].write_text(drive_xml(**pair["drive"]))
    paths[1].write_text(workload_xml([flow_xml(SYNTHETIC, **each) for each in pair["flows"]]))
    drive, scenarios = read_pair(*paths)
    flows = make_flows(drive, scenarios[0], frozenset(), [])
    parameters = flows[0].parameters
    assert outstanding.share_of_negative_sizes(parameters) == pytest.approx(0.012224, rel=1e-3)
    sectors = drive.page_sectors
    few = outstanding.outstanding(flows, sectors)
    assert few == 1500 * 4
    large = 1500 * 0.012224
    more = outstanding.outstanding(flows, sectors, frozenset(["negative_sizes"]))
    assert (more - few) / (-(-65535 // sectors)) == pytest.approx(large + 4 * large**0.5, abs=1)


def test_aligned_addresses_in_front_of_the_flow(tmp_path):
    """Alignment moves them below the flow's first sector. With the quirk wrapped_requests, such a
    request begins at its sector number modulo the last minus the first sector of the working set,
    from the first sector on; else at the first aligned sector of the flow."""
    paths = tmp_path / "ssd.xml", tmp_path / "load.xml"
    paths[0].write_text(drive_xml())
    entry = {"Address_Alignment_Unit": "7", "Total_Requests_To_Generate": "400"}
    entry |= {
        "Request_Size_Distribution": "FIXED",
        "Working_Set_Percentage": "1",
        "Address_Distribution": "RANDOM_UNIFORM",
        "Average_Request_Size": "20000",
    }
    paths[1].write_text(workload_xml([flow_xml(SYNTHETIC, **entry)] * 2))
    drive, scenarios = read_pair(*paths)
    first = make_flows(drive, scenarios[0], frozenset(), [])[1]
    begin, last = first.range.first, working_set(first.parameters, first.range).last
    assert begin % 7 != 0
    aligned = begin // 7 * 7
    wrapped = begin + aligned % (last - begin)
    with_quirk = make_flows(drive, scenarios[0], frozenset(["wrapped_requests"]), [])[1]
    sectors = [np.concatenate(list(f.chunks()))["offset"] // 512 for f in (first, with_quirk)]
    moved = sectors[0] == aligned + 7
    assert 0 < moved.sum() < len(moved)
    assert (sectors[1][moved] == wrapped).all() and (sectors[1] == sectors[0])[~moved].all()
