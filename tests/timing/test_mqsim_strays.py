"""Pages that another flow evicts from MQSim's data cache: which sectors are written.

MQSim's host interface cuts a request at the page boundaries of the drive, but numbers pages and
sectors from the first sector of the flow (`Host_Interface_NVMe`); the write of an evicted page
keeps its sector bits, whatever flow evicts it (`Data_Cache_Manager_Flash_Advanced`).
"""

import pytest

from ondie.emu.nvme import mqsim_cache
from ondie.emu.replay.mqsim import quirks
from ondie.emu.replay.mqsim import to_engine as simulate
from ondie.emu.replay.mqsim.flows import flows as flows_of
from ondie.emu.replay.mqsim.run import read_pair
from tests.config.mqsim_pairs import draw, write

PAGE = 32  # sectors
BEGINS = 0, 12, 24, 4  # sector of the drive's page at which each flow begins


def bits(begin, first, end):
    """The bits, on our side, of sectors ``first`` to ``end`` of a page of a flow that begins at
    sector ``begin``: turned by the sectors up to the end of the drive's page."""
    own = range(first, end)
    return sum(1 << (at if begin == 0 else (at - (PAGE - begin)) % 63) for at in own)


@pytest.fixture
def made(tmp_path):
    """Return (state, arrays) of a drive of four flows whose cache has one page."""
    parameters, flows = draw(38, collection=False)
    paths = write(tmp_path, parameters | {"Data_Cache_Capacity": str(PAGE * 512)}, flows)
    drive, scenarios = read_pair(*paths)
    names = quirks.obeyed(True)
    _, arrays = simulate.prepared(drive, flows_of(drive, scenarios[0], names, []), names)
    assert tuple(arrays.zone["skew"] // 512) == BEGINS
    assert arrays.cfg["cache_pages"][0] == 1
    return arrays.handle(), arrays


def test_each_sector_keeps_its_number_in_the_flow(made):
    """Sector s of the flow that wrote the page is sector s of the flow that evicts it."""
    state, _ = made
    for owner, begin in enumerate(BEGINS):
        for stream, other in enumerate(BEGINS):
            for at in range(63):
                found = mqsim_cache.renumbered(state, bits(begin, at, at + 1), owner, stream)
                assert found == bits(other, at, at + 1), (owner, stream, at)


@pytest.mark.parametrize(("owner", "stream"), [(1, 0), (0, 1), (1, 2), (2, 2)])
def test_an_evicted_page_is_written_with_them(made, owner, stream):
    """Flow ``stream`` evicts sectors 19 to 50, counted from page 5 of flow ``owner``."""
    state, arrays = made
    first = mqsim_cache.first_number(state, owner)
    place, write = mqsim_cache.make_place(state, 0, owner, first + 5, -1)
    assert write == -1
    page = arrays.cpage[place - 1]
    page.have, page.stream = bits(BEGINS[owner], 19, 51), owner
    mqsim_cache.set_content(state, 0, place, mqsim_cache.DIRTY)
    _, write = mqsim_cache.make_place(state, 0, stream, 9, -1)
    txn = arrays.txn[write]
    assert txn.lpn == mqsim_cache.first_number(state, stream) + 5
    assert txn.stream == stream
    assert txn.sectors == bits(BEGINS[stream], 19, 51)
    assert txn["size"] == 32 * 512
