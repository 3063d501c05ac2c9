"""Is the device a dictionary of pages? Under writes, overwrites, TRIM and reads of every size,
at every depth, while collection moves everything many times, with each feature of the flash on
and off.
"""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from ondie.emu.engine.core.counters import COLLECTIONS
from ondie.emu.nvme import command as queues
from tests.state.small import PAGE, commands, counter, device

pytestmark = pytest.mark.usefixtures("few_transactions")

READ, WRITE, TRIM = queues.READ, queues.WRITE, queues.TRIM
LPNS = 358  # 512 pages, 30 % over-provisioned


class Pages:
    """The device and, beside it, the dictionary that it must be equal to."""

    def __init__(self, **config):
        self.device = device(payload=True, ftl__gc_low_blocks=1, **config)
        self.device.buffer = np.zeros((256, PAGE), np.uint8)
        self.model: dict[int, int] = {}  # page -> stamp of its last write; absent = zeros
        self.stamp = 0

    @staticmethod
    def content(stamp):
        """A page that occurs once: its stamp, repeated."""
        return np.full(PAGE // 8, stamp, np.int64).view(np.uint8)

    def batch(self, items):
        """Commands in flight together, on pages that do not meet: then their order is free, and
        the dictionary knows what each must see."""
        items, free = list(items), np.ones(LPNS, bool)
        chosen, slot = [], 0
        for op, lpn, n in items:
            n = min(n, LPNS - lpn, 256 - slot)
            if n < 1 or not free[lpn : lpn + n].all():
                continue
            free[lpn : lpn + n] = False
            chosen.append((op, lpn, n, slot))
            slot += n * (op != TRIM)
        buffer = self.device.buffer
        buffer[:] = 0xEE
        for op, lpn, n, at in chosen:
            for i in range(n):
                if op == WRITE:
                    self.stamp += 1
                    self.model[lpn + i] = self.stamp
                    buffer[at + i] = self.content(self.stamp)
                elif op == TRIM:
                    self.model.pop(lpn + i, None)
        out = commands([c[:3] for c in chosen], arrival=self.device.now, slot=0)
        self.device.submit(out)
        self.device.run()
        assert sorted(self.device.completions()["tag"]) == list(range(len(chosen)))
        for op, lpn, n, at in chosen:
            if op == READ:
                for i in range(n):
                    want = self.content(self.model.get(lpn + i, 0))
                    assert (buffer[at + i] == want).all(), f"page {lpn + i}"
        self.device.check()

    def compare(self):
        """Every page, as flash holds it and as a host reads it."""
        for lpn in range(LPNS):
            stored = self.device.stored(lpn)
            assert (stored is None) == (lpn not in self.model)
            assert stored is None or (stored == self.content(self.model[lpn])).all()
        for lpn in range(0, LPNS, 16):
            got = self.device.read(lpn, min(16, LPNS - lpn))
            for i, page in enumerate(got):
                assert (page == self.content(self.model.get(lpn + i, 0))).all()
        self.device.check()


ITEM = st.tuples(
    st.sampled_from((WRITE, WRITE, WRITE, READ, TRIM)), st.integers(0, LPNS - 1), st.integers(1, 16)
)
FEATURES = ("flash__multi_plane", "flash__cache_read", "flash__cache_program")


@hypothesis.given(
    st.lists(st.lists(ITEM, min_size=1, max_size=24), min_size=1, max_size=12),
    st.sets(st.sampled_from(FEATURES)),
    st.sampled_from(("fresh", "steady")),
    st.sampled_from((1, 3, 32)),
    st.integers(0, 2**32 - 1),
)
def test_pages_are_a_dictionary(batches, off, initial, depth, seed):
    """The drive is written full and half of it overwritten, so that collection is under way
    when the drawn commands come, which overwrite again."""
    pages = Pages(ftl__initial=initial, host__io_queue_depth=depth, **dict.fromkeys(off, "false"))
    rng = np.random.default_rng(seed)
    order = [*range(0, LPNS, 16), *rng.permutation(LPNS - 16)[:24].tolist()]
    for part in np.array_split(order, 6):
        pages.batch([(WRITE, int(lpn), 16) for lpn in part])
    for items in batches:
        pages.batch(items)
    assert counter(pages.device, COLLECTIONS) > 0
    pages.compare()


def test_many_collections(counts):
    """Long random overwriting: every block is collected many times over, nothing is lost."""
    pages = Pages()
    rng = np.random.default_rng(11)
    for _ in range(counts(30, 400)):
        size = int(rng.integers(1, 9))
        pages.batch(
            (int(op), int(lpn), size)
            for op, lpn in zip(
                rng.choice([WRITE] * 8 + [READ, TRIM], 24), rng.integers(0, LPNS, 24), strict=True
            )
        )
    assert counter(pages.device, COLLECTIONS) > 100
    assert pages.device.arrays.block.erases.min() >= 2
    pages.compare()
