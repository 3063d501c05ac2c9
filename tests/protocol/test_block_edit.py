"""Do the changes to a trace, and its summary, agree with sets of bytes worked out one by one?"""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.traces import TraceError
from ondie.traces.block import FLUSH, OPS, READ, TRIM, WRITE
from ondie.traces.block_edit import beside, head, only, without, wrap
from ondie.traces.block_info import block_info, footprint
from tests.protocol.block_samples import columns, rows


@st.composite
def small(draw, most=200):
    """Requests over few bytes, so that they overlap."""
    n = draw(st.integers(1, 12))
    requests = []
    for i in range(n):
        op = draw(st.integers(0, 3))
        place = (0, 0) if op == FLUSH else (draw(st.integers(0, most)), draw(st.integers(1, 60)))
        requests.append((i, op, *place, draw(st.integers(0, 1))))
    return columns(requests, ("a", "b"))


def touched(trace, chosen) -> set[tuple[int, int]]:
    """(device, byte) of the chosen requests."""
    return {
        (int(trace.device[i]), byte)
        for i in np.flatnonzero(chosen)
        for byte in range(trace.offset[i], trace.offset[i] + trace.size[i])
    }


@given(small())
def test_footprint_is_the_number_of_distinct_bytes(trace):
    for op in range(4):
        assert footprint(trace, trace.op == op) == len(touched(trace, trace.op == op))
    assert footprint(trace, trace.op != FLUSH) == len(touched(trace, trace.op != FLUSH))


@given(small(), st.integers(60, 300))
def test_wrapping_moves_each_byte_to_its_remainder(trace, capacity):
    after = wrap(trace, capacity)
    for op in (READ, WRITE, TRIM):
        moved = {(d, b % capacity) for d, b in touched(trace, trace.op == op)}
        assert touched(after, after.op == op) == moved
    assert after.size.sum() == trace.size.sum()
    assert (after.op == FLUSH).sum() == (trace.op == FLUSH).sum()
    assert (after.offset + after.size <= capacity).all()
    extra = len(after) - len(trace)
    split = (trace.size > 0) & (trace.offset % capacity + trace.size > capacity)
    assert extra == split.sum()
    assert any(f"{extra} requests across the wrap" in note for note in after.notes) == bool(extra)
    for name in ("arrival_ps", "op", "device"):  # the halves keep everything else
        assert getattr(after, name).tolist() == np.repeat(getattr(trace, name), 1 + split).tolist()


def test_wrapping_what_is_larger_than_the_space():
    trace = columns([(0, READ, 0, 512, 0), (0, READ, 0, 4096, 0)], ("a",))
    with pytest.raises(TraceError, match="request 1: size is 4096, larger than .* 1024 bytes"):
        wrap(trace, 1024)
    with pytest.raises(TraceError, match="offset wrap 0"):
        wrap(trace, 0)


@given(small())
def test_devices_side_by_side_do_not_overlap(trace):
    after = beside(trace)
    data = trace.op != FLUSH
    assert after.devices == ("+".join(trace.devices),)
    assert footprint(after, data) == footprint(trace, data)
    second = trace.device == 1
    base = int((after.offset - trace.offset)[data & second].max(initial=0))
    assert base in (0, 1 << 20)  # the first device ends within 1 MiB
    assert (after.offset - trace.offset == np.where(data & second, base, 0)).all()


def test_only_one_device():
    trace = columns([(0, 0, 0, 1, 0), (1, 1, 5, 2, 1), (2, 0, 9, 3, 0)], ("a", "b"))
    assert rows(only(trace, "a")) == [(0, 0, 1, "a"), (0, 9, 3, "a")]
    assert rows(only(trace, "b")) == [(1, 5, 2, "b")]
    with pytest.raises(TraceError, match="device 'c': must be one of a, b"):
        only(trace, "c")


def test_head_and_without():
    more = {"response_ps": np.array([7, 8, 9]), "fua": np.array([False, True, False])}
    requests = [(0, READ, 0, 1, 0), (1, WRITE, 5, 2, 0), (2, READ, 9, 3, 0)]
    trace = columns(requests, ("a",), **more)
    assert head(trace, 2).offset.tolist() == [0, 5] and head(trace, 9).size.sum() == 6
    left = without(trace, READ)
    assert rows(left) == [(WRITE, 5, 2, "a")]
    assert left.response_ps.tolist() == [8] and left.fua.tolist() == [True]
    with pytest.raises(TraceError, match="limit 0"):
        head(trace, 0)
    with pytest.raises(TraceError, match="no requests"):
        without(left, WRITE)


def test_summary_by_hand():
    trace = columns(
        [
            (10**12, READ, 0, 4096, 0),
            (10**12, WRITE, 4096, 4096, 0),
            (2 * 10**12, WRITE, 512, 1024, 1),
            (2 * 10**12, READ, 65536, 512, 0),
            (3 * 10**12, TRIM, 0, 8192, 0),
            (3 * 10**12, FLUSH, 0, 0, 0),
        ],
        ("a", "b"),
        response_ps=np.arange(1, 7) * 10**6,
        fua=np.array([False, True, False, False, False, False]),
    )
    data = block_info(trace)
    assert json.loads(json.dumps(data)) == data
    assert (data["requests"], data["span_s"]) == (6, 2.0)
    assert data["requests_per_s"] == 2.5  # five gaps in two seconds
    assert data["share"] == dict(zip(OPS, (2 / 6, 2 / 6, 1 / 6, 1 / 6), strict=True))
    assert data["bytes"] == {"read": 4608, "write": 5120, "trim": 8192}
    assert data["size_bytes"]["write"] == {"min": 1024, "median": 2560.0, "max": 4096}
    # On a: bytes 0 to 8191 and 512 from 65536; on b: 1024.
    assert data["footprint_bytes"] == {
        "read": 4608, "write": 5120, "trim": 8192, "all": 8192 + 512 + 1024
    }  # fmt: skip
    assert data["aligned_4k_share"] == 0.5  # the first two of four reads and writes
    filled = {k: v for k, v in data["alignment"].items() if v}
    assert filled == {"512": 1, "4096": 1, "65536": 2}  # 0 is a multiple of all
    assert data["devices"]["a"] == {"requests": 5, "end_bytes": 66048}
    assert data["devices"]["b"] == {"requests": 1, "end_bytes": 1536}
    assert data["fua_writes"] == 1
    assert data["response_us"]["median"] == 3.5 and data["response_us"]["max"] == 6.0


def test_summary_of_little():
    data = block_info(columns([(0, FLUSH, 0, 0, 0)], ("a",)))
    assert data["aligned_4k_share"] is None and data["requests_per_s"] is None
    assert data["footprint_bytes"] == {"all": 0}
