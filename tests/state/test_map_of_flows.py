"""The cached mapping table of several flows of MQSim: which cache holds an entry, and which blocks
hold the translation pages of each flow.
"""

from collections import OrderedDict

import numpy as np
import pytest

from ondie.emu.ftl import page_map
from ondie.emu.ftl.invariants import check_between_events
from ondie.emu.nand.geometry import Geometry
from ondie.emu.replay.mqsim import quirks
from ondie.emu.replay.mqsim.flows import flows as make_flows
from ondie.emu.replay.mqsim.run import read_pair
from ondie.emu.replay.mqsim.to_engine import played, prepared
from tests.config.mqsim_files import drive_xml, flow_xml, workload_xml

DRIVE = {
    "Ideal_Mapping_Table": "false",
    "Flash_Technology": "SLC",
    "Flash_Channel_Count": "4",
    "Chip_No_Per_Channel": "1",
    "Die_No_Per_Chip": "1",
    "Block_No_Per_Plane": "64",
    "Page_No_Per_Block": "64",
    "CMT_Capacity": "4096",
}
FLOW = {
    "Channel_IDs": "0,1,2,3",
    "Chip_IDs": "0",
    "Die_IDs": "0",
    "Synthetic_Generator_Type": "QUEUE_DEPTH",
    "Address_Distribution": "RANDOM_UNIFORM",
    "Request_Size_Distribution": "FIXED",
    "Average_Request_Size": "8",
    "Address_Alignment_Unit": "8",
    "Average_No_of_Reqs_in_Queue": "1",
    "Working_Set_Percentage": "12",
    "Total_Requests_To_Generate": "3000",
}
ENTRY = 5
"""Bytes of an entry in the cache: two page numbers of 15 bits and 8 sectors."""


def pair(tmp_path, flows, **drive):
    """The drive and flows of a workload with ``flows`` (changes of FLOW)."""
    paths = tmp_path / "ssd.xml", tmp_path / "load.xml"
    paths[0].write_text(drive_xml(**DRIVE | drive))
    paths[1].write_text(workload_xml([flow_xml(**FLOW | flow) for flow in flows]))
    return read_pair(*paths)


def hits_of(requests, capacity):
    """Hits of an LRU cache with ``capacity`` entries, for requests of one page in their order."""
    held: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits = 0
    for request in requests:
        key = int(request["stream"]), int(request["offset"]) // 4096
        if key in held:
            held.move_to_end(key)
            hits += 1
            continue
        if len(held) == capacity:
            held.popitem(last=False)
        held[key] = None
    return hits


@pytest.mark.parametrize("mode", ["EQUAL_PARTITIONING", "SHARED"])
@pytest.mark.parametrize("asked", [False, True])
def test_each_flow_or_all_have_a_cache(tmp_path, mode, asked):
    """Shared: one cache for all flows, or with MQSim's quirk the whole capacity for each."""
    flows = [{"Seed": "798"}, {"Seed": "6533", "Read_Percentage": "100"}, {"Seed": "44"}]
    d, scenarios = pair(tmp_path, flows, CMT_Sharing_Mode=mode)
    names = quirks.obeyed(asked)
    made = make_flows(d, scenarios[0], names)
    run = played(d, made, names)
    entries = 4096 // ENTRY
    if mode == "SHARED" and not asked:
        whole = np.concatenate(run.requests)
        expected = hits_of(whole[np.argsort(whole["start"], kind="stable")], entries)
        tolerance = 3  # a lookup comes some time after the start of its request
    else:
        each = entries if asked and mode == "SHARED" else entries // 3
        expected = sum(hits_of(requests, each) for requests in run.requests)
        tolerance = 0
    if asked:  # MQSim makes all dirty entries of a translation page the newest ones
        tolerance = expected // 100
    assert 1000 < expected < 7000
    assert abs(run.counters["map_hits"] - expected) <= tolerance
    assert run.counters["map_hits"] + run.counters["map_misses"] == 3 * 3000


def test_translation_pages_lie_in_blocks_and_planes_of_their_flow(tmp_path):
    flows = [{}, {"Channel_IDs": "1,2", "Seed": "44"}]
    d, scenarios = pair(tmp_path, flows)
    made = make_flows(d, scenarios[0], frozenset())
    cfg, arrays = prepared(d, made, frozenset())
    geometry = Geometry.of(cfg)
    check_between_events(arrays, geometry)
    lpns, span = int(arrays.cfg.lpns[0]), int(arrays.cfg.map_span[0])
    assert int(arrays.zone["first_lpn"][1]) % span == 0
    for i, flow in enumerate(made):
        first = int(arrays.zone["first_lpn"][i])
        pages = flow.range.pages(d.page_sectors)
        mine = lpns + first // span + np.arange(pages // span)
        ppn = arrays.l2p[0, mine].astype(np.int64) - 1
        assert (ppn >= 0).all() and len(ppn) >= 4
        block = arrays.block[ppn // geometry.block_pages]
        assert (block.stream == int(arrays.cfg.map_stream[0]) + i).all()
        assert (block.state == page_map.OPEN).all()
        channel = block.die % d.flash_channel_count
        assert set(channel) == set(flow.parameters.channel_ids)
    mapped = np.flatnonzero(arrays.l2p[0])
    assert len(mapped) == sum(flow.range.pages(d.page_sectors) // span for flow in made)
