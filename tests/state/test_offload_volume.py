"""Do offloaded vectors lie where RAID 0 puts them, every byte once?

FACTS used: Linux md RAID 0: chunk c of the volume is chunk c // N of drive c % N.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondie.emu.config.config import load_preset
from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.layout.volume import Extent, File, Volume, extents

GEOMETRY = Geometry.of(load_preset("optimstore-r1"))
PAGE = GEOMETRY.page_bytes
assert PAGE == 8192


def volume(pieces, width=4, devices=1, block=4 * PAGE, align=1, below=0, share=1):
    file = File(extents(pieces, width, PAGE, below), width, share)
    return Volume.of({"w": file, "m": file}, GEOMETRY, devices, block, align)


def test_stripes_by_hand():
    """Two drives, blocks of four pages: 10 pages are blocks 0, 1, 2 (the last of two pages). Drive
    0 has blocks 0 and 2, drive 1 block 1; the second vector begins behind two chunks of each."""
    v = volume([(0, 10 * PAGE // 4)], devices=2)
    found = v.requests("w", 0, 10 * PAGE // 4)
    assert found.device.tolist() == [0, 1, 0]
    assert found.lpn.tolist() == [0, 0, 4]
    assert found.size.tolist() == [4 * PAGE, 4 * PAGE, 2 * PAGE]
    assert found.first.tolist() == [0, 8192, 16384]
    assert v.requests("m", 0, 10 * PAGE // 4).lpn.tolist() == [8, 8, 12]
    assert v.used("w") == [(0, 6), (0, 4)] and v.used("m") == [(8, 6), (8, 4)]
    assert v.pages == 16


def test_a_request_that_begins_within_a_chunk_is_cut_at_its_end():
    """Parameters from page 6 on: two pages of chunk 1 on drive 1, then chunk 2 on drive 0."""
    v = volume([(0, 16 * PAGE // 4)], devices=2)
    found = v.requests("w", 6 * PAGE // 4, 12 * PAGE // 4)
    assert found.device.tolist() == [1, 0, 0]
    assert found.lpn.tolist() == [2, 4, 6]  # at most a block from where it began, and per chunk
    assert found.size.tolist() == [2 * PAGE, 2 * PAGE, 2 * PAGE]


def test_files_of_tensors_begin_at_pages_and_small_ones_stay_away():
    assert extents([(0, 3000), (3000, 3010), (3010, 6000)], 4, PAGE, 4096) == (
        Extent(0, 3000, 0), Extent(3010, 6000, 2 * PAGE),
    )  # fmt: skip


def test_padding_is_of_each_file():
    """2,990 parameters are 11,960 B: padded to 4 KiB they are 12,288."""
    v = volume([(0, 2990), (2990, 5980)], align=4096)
    assert v.requests("w", 0, 5980).size.tolist() == [12288, 12288]
    assert v.size("w", 0, 5980) == 2 * 12288


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40_000), min_size=1, max_size=5),
    devices=st.integers(1, 5),
    pages=st.integers(1, 6),
    entry=st.sampled_from([(2, 1), (4, 1), (4, 256), (4, 2)]),
    data=st.data(),
)
def test_every_byte_lies_in_one_place(lengths, devices, pages, entry, data):
    """Requests of any range cover its bytes once, none is longer than a block, and what they name
    is where `pieces` finds the same parameters. An entry is a value, or a scale of some."""
    width, share = entry
    ends = np.cumsum(lengths).tolist()
    cuts = list(zip([0, *ends], ends))  # noqa: B905
    v = volume(cuts, width, devices, pages * PAGE, share=share)

    def size(n):
        return -(-n // share) * width

    taken = set()
    for name in ("w", "m"):
        for first, last, dev, at in v.pieces(name, 0, ends[-1]):
            end = at + size(last - first)
            span = {(dev, byte // PAGE) for byte in range(at, end, PAGE)}
            assert not span & taken and dev < devices and end <= v.pages * PAGE
            taken |= span
    e = data.draw(st.sampled_from(v.regions["w"].extents))
    found = v.requests("w", e.start, e.stop)
    assert found.size.sum() == size(e.stop - e.start) == v.size("w", e.start, e.stop)
    assert (0 < found.size).all() and (found.size <= v.block).all()
    places = {first: (dev, at) for first, _, dev, at in v.pieces("w", e.start, e.stop)}
    for dev, lpn, first in zip(found.device, found.lpn, found.first, strict=True):
        start = max(p for p in places if p <= first)
        assert places[start][0] == dev
        assert (places[start][1] + size(first - start)) // PAGE == lpn


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_used_pages_are_those_of_the_pieces(devices):
    v = volume([(0, 123_456)], devices=devices)
    mine = [0] * devices
    for first, last, dev, _ in v.pieces("w", 0, 123_456):
        mine[dev] += -(-(last - first) * 4 // PAGE)
    assert [pages for _, pages in v.used("w")] == mine
