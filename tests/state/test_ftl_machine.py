"""Is the flash translation layer a dictionary of pages? Commands in flight together, power looked
at in between, every mechanism of placement, collection, wear and failure drawn at random, on a
drive so small that collection never rests.
"""

from collections import Counter

import hypothesis
import numpy as np
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from ondie.emu.config.schema.flash import ORDERS
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.engine.run import build
from ondie.emu.ftl import page_map as mapping
from ondie.emu.ftl.policies import VICTIMS
from ondie.emu.nand import page_store as store
from ondie.emu.nvme import command as queues
from ondie.emu.units import InputError
from tests.state.small import PAGE, PageDrive, commands, config

READ, WRITE, TRIM, FLUSH = queues.READ, queues.WRITE, queues.TRIM, queues.FLUSH
SLOTS = 256
ENOUGH = 1 << 21
"""Events in which any drive here comes to rest, many times over."""


@pytest.fixture(autouse=True, scope="module")
def _a_small_pool():
    """Arrays of a few kilobytes: a device is made for every example."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "BUDGET", 512)
        patch.setattr(build, "ROWS", 1 << 10)
        patch.setattr(store, "SEGMENT_BYTES", 1 << 16)
        yield


def yes_or_no(name):
    return st.tuples(st.just(name), st.sampled_from(("false", "true")))


DRIVES = st.fixed_dictionaries(
    {
        "flash__channels": st.integers(1, 2),
        "flash__dies_per_channel": st.sampled_from((1, 2)),
        "flash__planes_per_die": st.sampled_from((1, 2)),
        "flash__blocks_per_plane": st.integers(16, 22),
        "flash__pages_per_block": st.sampled_from((2, 4, 8)),
        "ftl__mapping_unit": st.sampled_from((0, 0, 0, 2, 4)),  # of a page
        "flash__multi_plane": st.sampled_from(("true", "false")),
        "flash__programming": st.sampled_from(("page", "page", "one_shot", "two_pass")),
        "ftl__gather_time": st.sampled_from(("10 us", "1 ms", "10 ms")),
        "flash__cache_read": st.sampled_from(("true", "false")),
        "flash__cache_program": st.sampled_from(("true", "false")),
        "flash__plane_reads": st.sampled_from(("together", "alone")),
        "pe__kind": st.sampled_from(("none", "per_plane")),
        "flash__suspend": st.sampled_from(("none", "erase", "program", "program_erase")),
        "flash__max_suspends": st.sampled_from((1, 3)),
        "flash__t_resume": st.sampled_from(("0 us", "2 us")),
        "flash__power_planes": st.sampled_from((0, 2)),
        "flash__grants": st.sampled_from(("commands", "data")),
        "ftl__block_unit": st.sampled_from(("die", "plane")),
        "ftl__placement": st.sampled_from(("dynamic", "static")),
        "ftl__allocation": st.sampled_from(ORDERS),
        "ftl__write_streams": st.integers(1, 3),
        "ftl__gc_streams": st.sampled_from(("one", "each")),
        "ftl__open_blocks": st.sampled_from(("needed", "ahead")),
        "ftl__stream_policy": st.sampled_from(("by_command", "one", "by_age")),
        "ftl__gc_policy": st.sampled_from(tuple(VICTIMS)),
        "ftl__gc_low_blocks": st.integers(1, 3),
        "ftl__gc_stop_blocks": st.integers(0, 3),
        "ftl__gc_hard_blocks": st.integers(1, 3),
        "ftl__gc_parallel": st.integers(1, 3),
        "ftl__gc_window_pages": st.sampled_from((0, 1, 3)),
        "ftl__gc_priority": st.sampled_from(("background", "shared", "urgent", "exclusive")),
        "ftl__gc_copyback": st.sampled_from(("false", "true", "true")),  # little goes with it
        "ftl__partial_pages": st.sampled_from(("whole", "sectors")),
        "ftl__erase": st.sampled_from(("open", "collected")),
        "ftl__wear_dynamic": st.sampled_from(("true", "false")),
        "ftl__wear_static_cycles": st.sampled_from((0, 2, 5)),
        "ftl__bad_blocks": st.sampled_from((0, 0, 0.1)),
        "ftl__program_failures": st.sampled_from((0, 0, 0.002, 0.03)),
        "ftl__erase_failures": st.sampled_from((0, 0, 0.01)),
        "ftl__map_cache": st.sampled_from(("0 B", "0 B", "100 B", "400 B")),
        "ftl__initial": st.sampled_from(("fresh", "steady")),
        "errors__kind": st.sampled_from(("none", "model")),
        "ftl__pslc": st.sampled_from(("off", "static", "dynamic")),
        "ftl__pslc_share": st.sampled_from((0.1, 0.2)),
        "ftl__pslc_full": st.sampled_from(("direct", "wait")),
        "ftl__pslc_streams": st.integers(0, 1),
        "ftl__fold_blocks": st.integers(0, 2),
        "ftl__fold_idle": st.sampled_from(("0 us", "300 us")),
        "flash__cell": st.sampled_from(("MLC", "TLC")),
        "ftl__reclaim_reads": st.sampled_from((0, 2, 10)),
        "ftl__reclaim_retries": st.sampled_from((0, 1, 1)),
    }
)
READ_AGAIN = {
    "errors__pslc": 1, "errors__mlc": 1, "errors__tlc": 1, "errors__floor": 0,
    "errors__wear": 0, "errors__disturb": 0,
    "errors__retention": 6e-3, "errors__retention_exponent": 0, "errors__initial_days": 1,
    "ecc__codeword": "512 B", "ecc__correctable_bits": 20, "ecc__decode_limit": "20 us",
    "ecc__retries": 2, "ecc__retry_gain": 0, "ecc__soft_reads": 0,
}  # fmt: skip
"""Three readings of four fail, a second one never does. (Copy-back would add errors up.)"""
WORD_LINES = {
    "flash__cell": "MLC", "flash__pages_per_block": 8, "flash__t_program_second": "900 us",
    "pe__kind": "none", "ftl__gc_copyback": "false",
}  # fmt: skip
DEPTHS = st.sampled_from((1, 4, 32))


def possible(drawn):
    """The drawn configuration without what cannot be together, and with room for every block that
    a unit may have open."""
    drawn = dict(drawn)
    drawn["ftl__gc_stop_blocks"] = min(
        drawn["ftl__gc_stop_blocks"], drawn["ftl__gc_low_blocks"] + 1
    )
    if drawn["flash__plane_reads"] == "alone":
        drawn["pe__kind"] = "none"
    if drawn["ftl__erase"] == "open":
        drawn["ftl__erase_failures"] = 0
    if drawn["errors__kind"] == "model":
        drawn |= READ_AGAIN | {"ftl__gc_copyback": "false"}
    else:
        drawn |= {"ftl__reclaim_reads": 0, "ftl__reclaim_retries": 0}
    padding = 0
    if drawn["flash__programming"] != "page":
        drawn |= WORD_LINES | {"ftl__pslc": "off"}
        padding = 2 if drawn["flash__programming"] == "two_pass" else 1
    slots = drawn["ftl__mapping_unit"]
    if slots:
        drawn |= {
            "ftl__gc_copyback": "false",
            "flash__page": f"{PAGE * slots} B",
            "ftl__mapping_unit": f"{PAGE} B",
        }
        if drawn["flash__programming"] == "page":
            drawn["flash__pages_per_block"] = 4
            padding = 1
    blocks = drawn["flash__blocks_per_plane"]
    if drawn["ftl__pslc"] != "off":
        drawn["flash__blocks_per_plane"] = blocks = blocks + 6
        drawn["flash__pages_per_block"] = max(drawn["flash__pages_per_block"], 4)
    elif drawn["flash__programming"] == "page":
        del drawn["flash__cell"]
    if padding:
        drawn["flash__blocks_per_plane"] = blocks = blocks + 4
    streams = drawn["ftl__write_streams"]
    fronts = streams + (streams if drawn["ftl__gc_streams"] == "each" else 1)
    kept = max(1, drawn["ftl__gc_stop_blocks"] - 1)
    lost = 3 if drawn["ftl__bad_blocks"] or drawn["ftl__program_failures"] else 0
    lost += 3 if drawn["ftl__map_cache"] != "0 B" else 0  # for translation pages
    if drawn["ftl__pslc"] == "static":
        blocks -= int(blocks * drawn["ftl__pslc_share"])
        lost += 3  # folding keeps native blocks back
    fronts += drawn["ftl__pslc"] != "off"
    usable = blocks - fronts - kept - lost - 1
    usable -= -(-usable * padding // 4)  # a block that gains less is not worth collecting
    if usable <= 0:
        hypothesis.reject()
    drawn["ftl__over_provisioning"] = 1 - usable / blocks
    return config(**drawn)


class Machine(stateful.RuleBasedStateMachine):
    """A device, and the dictionary that it must be equal to."""

    @stateful.initialize(drawn=DRIVES, depth=DEPTHS, half=st.booleans())
    def make(self, drawn, depth, half):
        self.write_over(possible(drawn), depth, half)

    def write_over(self, cfg, depth, half):
        """A drive written full (or half), then overwritten, so that collection is under way."""
        self.full = False
        self.may_fill_up = bool(
            cfg.ftl.bad_blocks or cfg.ftl.program_failures or cfg.ftl.erase_failures
        )
        try:
            self.device = PageDrive(cfg, payload=True, queue_depth=depth)
        except InputError as error:  # too few good blocks for the data
            assert "ftl.bad_blocks" in str(error) and cfg.ftl.bad_blocks
            hypothesis.reject()
        self.device.buffer = np.zeros((SLOTS, PAGE), np.uint8)
        self.lpns = self.device.lpns
        self.streams = cfg.ftl.write_streams
        self.model: dict[int, int] = {}  # page -> stamp of its last write; absent = zeros
        self.stamp = 0
        self.busy: dict[int, int] = {}  # page -> command in flight that writes or trims it
        self.flying: dict[int, tuple] = {}  # tag -> command
        self.slots = set(range(SLOTS))
        self.tag = 0
        order = list(range(0, self.lpns // (2 if half else 1), 8))
        rng = np.random.default_rng(self.lpns + depth)
        order += rng.integers(0, max(self.lpns - 8, 1), 2 * len(order)).tolist()
        for lpn in order:
            self.send([(WRITE, lpn, 8, int(rng.integers(self.streams)))])
        self.to_idle()

    # --- commands

    @staticmethod
    def content(stamp):
        """A page that occurs once: its stamp, repeated."""
        return np.full(PAGE // 8, stamp, np.int64).view(np.uint8)

    def send(self, items):
        """Submit commands on pages that nothing in flight writes: then the dictionary knows what
        each must see."""
        for op, lpn, n, stream in items:
            lpn = min(lpn, self.lpns - 1)
            n = min(n, self.lpns - lpn)
            pages = range(lpn, lpn + n)
            met = any(p in self.busy for p in pages)
            if op != READ:
                met |= any(p in c[3] for c in self.flying.values() if c[0] == READ for p in pages)
            needed = n if op in (READ, WRITE) else 0
            if met or len(self.slots) < needed:
                self.to_idle()
            at = self._slots(needed)
            if at is None:
                self.to_idle()
                at = self._slots(needed)
            command = commands([(op, lpn, n if op != FLUSH else 0)], arrival=self.now)
            command["tag"] = self.tag
            command["stream"] = stream if op == WRITE else 0
            command["payload_slot"] = at if needed else -1
            wanted = {}
            for i, page in enumerate(pages):
                if op == WRITE:
                    self.stamp += 1
                    self.model[page] = self.stamp
                    self.device.buffer[at + i] = self.content(self.stamp)
                elif op == TRIM:
                    self.model.pop(page, None)
                elif op == READ:
                    self.device.buffer[at + i] = 0xEE
                    wanted[page] = self.model.get(page, 0)
                if op in (WRITE, TRIM):
                    self.busy[page] = self.tag
            self.flying[self.tag] = (op, at, n, wanted if op == READ else {})
            self.tag += 1
            if not self.full:
                self.device.submit(command)

    @property
    def now(self):
        return self.device.earliest_arrival

    def _slots(self, n):
        """First of n neighbouring free slots, which are free no more."""
        for at in range(SLOTS - n + 1 if n else 0):
            if self.slots.issuperset(range(at, at + n)):
                self.slots -= set(range(at, at + n))
                return at
        return None if n else 0

    def step(self, events):
        """Run, and take over what has completed."""
        try:
            self.device.run(events)
        except InputError as error:
            message = str(error)
            lost = "are bad" in message or "had a failed program" in message
            assert "is full" in message and lost and self.may_fill_up, error
            self.full = True
        done = self.device.completions()
        assert not done["status"].any()
        for tag in done["tag"].tolist():
            op, at, n, wanted = self.flying.pop(tag)
            for page, stamp in wanted.items():
                got = self.device.buffer[at + page - min(wanted)]
                assert (got == self.content(stamp)).all(), f"page {page}"
            if op in (READ, WRITE):
                self.slots |= set(range(at, at + n))
            self.busy = {p: t for p, t in self.busy.items() if t != tag}

    def to_idle(self):
        """Until nothing is under way; on a drive without good blocks, what still can be done. One
        that goes in circles does not end."""
        self.step(ENOUGH)
        if self.full:
            hypothesis.event("the drive ran out of good blocks")
            self.compare()
            hypothesis.reject()
        assert not self.flying and not self.busy

    # --- rules

    ITEM = st.tuples(
        st.sampled_from((WRITE, WRITE, WRITE, WRITE, READ, TRIM, FLUSH)),
        st.integers(0, 1 << 9),
        st.integers(1, 16),
        st.integers(0, 2),
    )

    @stateful.rule(items=st.lists(ITEM, min_size=1, max_size=24))
    def some_commands(self, items):
        self.send((op, lpn % self.lpns, n, s % self.streams) for op, lpn, n, s in items)

    @stateful.rule(lpn=st.integers(0, 1 << 9), n=st.integers(1, 40), stream=st.integers(0, 2))
    def hot_writes(self, lpn, n, stream):
        """The same few pages, over and over."""
        self.send((WRITE, (lpn + i % 5) % self.lpns, 1, stream % self.streams) for i in range(n))

    @stateful.rule(events=st.integers(1, 400))
    def some_events(self, events):
        self.step(events)

    @stateful.rule()
    def all_events(self):
        self.to_idle()
        self.compare()

    @stateful.rule(share=st.floats(0, 1))
    def trim_much(self, share):
        self.to_idle()
        n = max(int(share * self.lpns), 1)
        self.send([(TRIM, (self.lpns - n) // 2, n, 0)])

    @stateful.invariant()
    def books(self):
        if hasattr(self, "flying"):
            self.device.check()
            block = self.device.arrays.block
            given_up = (block.scan > self.device.geometry.block_pages).any()
            assert self.may_fill_up or not given_up, "a collection found no place"

    @stateful.rule()
    def power_on(self):
        """If power had gone now: the newest data of each page by sequence number are those that
        are mapped (copies by collection are as old as their data), every copy is whole, and bad
        blocks hold none."""
        device = self.device
        newest: dict[int, int] = {}
        g = device.geometry
        state = device.arrays.block.state
        for ppn, lpn, sequence in device.store.programmed():
            assert device.store.intact(ppn)
            newest[lpn] = max(newest.get(lpn, 0), sequence)
        for lpn in np.flatnonzero(device.arrays.l2p[0, : self.lpns]).tolist():
            ppn = int(device.arrays.l2p[0, lpn]) - 1
            assert newest[lpn] == device.store.sequence(ppn)
            assert state[ppn // g.block_pages] not in (mapping.FREE, mapping.BAD, mapping.ERASING)

    def compare(self):
        """Every page, as flash holds it."""
        for lpn in range(self.lpns):
            if lpn in self.busy:
                continue
            stored = self.device.stored(lpn)
            assert (stored is None) == (lpn not in self.model), f"page {lpn}"
            assert stored is None or (stored == self.content(self.model[lpn])).all(), f"page {lpn}"

    def teardown(self):
        if hasattr(self, "flying"):
            if not self.full:
                self.step(ENOUGH)
            self.compare()
            self.device.check()
            seen.update(dict(zip(COUNTERS, self.device.arrays.count[0].tolist(), strict=True)))


PLAIN = {
    "flash__channels": 1, "flash__dies_per_channel": 1, "flash__planes_per_die": 1,
    "flash__blocks_per_plane": 18, "flash__pages_per_block": 4, "flash__multi_plane": "true",
    "flash__programming": "page", "flash__plane_reads": "together", "pe__kind": "none",
    "ftl__mapping_unit": 0, "ftl__block_unit": "die", "ftl__write_streams": 1,
    "ftl__gc_streams": "one", "ftl__gc_policy": "greedy", "ftl__gc_low_blocks": 1,
    "ftl__gc_stop_blocks": 0, "ftl__gc_copyback": "false", "ftl__erase": "open",
    "ftl__bad_blocks": 0, "ftl__program_failures": 0, "ftl__map_cache": "0 B",
    "errors__kind": "none", "ftl__pslc": "off", "ftl__pslc_share": 0.1, "flash__cell": "MLC",
}  # fmt: skip
ONCE = {
    "a choice without room, with the reserve opened ahead for folding": {
        "ftl__open_blocks": "ahead", "ftl__gc_policy": "fifo", "ftl__pslc": "static",
    },
    "a line kept open for pages of a collection that was given up": {
        "flash__channels": 2, "flash__dies_per_channel": 2, "flash__blocks_per_plane": 22,
        "flash__programming": "two_pass", "ftl__gather_time": "10 ms",
        "flash__suspend": "program_erase", "flash__t_resume": "2 us", "flash__power_planes": 2,
        "flash__grants": "data", "ftl__allocation": "WDCP", "ftl__write_streams": 3,
        "ftl__gc_streams": "each", "ftl__stream_policy": "by_age", "ftl__gc_policy": "random",
        "ftl__gc_stop_blocks": 3, "ftl__gc_parallel": 3, "ftl__gc_window_pages": 3,
        "ftl__gc_priority": "exclusive", "ftl__bad_blocks": 0.1, "ftl__program_failures": 0.03,
        "errors__kind": "model",
    },
}  # fmt: skip
"""Drives that came to a standstill while they were being written, and why."""


@pytest.mark.parametrize("why", ONCE)
def test_drives_that_once_stood_still(why):
    machine = Machine()
    machine.write_over(possible(PLAIN | ONCE[why]), 1, why.startswith("a line"))
    machine.compare()
    machine.device.check()
    machine.teardown()


MECHANISMS = (
    "collections", "gc_program_pages", "gc_dropped_pages", "copyback_pages", "program_failures",
    "failed_pages", "bad_blocks", "wear_moves", "trimmed_pages", "unmapped_pages", "erased_blocks",
    "map_read_pages", "map_program_pages", "retry_read_pages", "reclaimed_blocks",
    "padding_pages", "second_pass_pages",
    "pslc_pages", "direct_pages", "folds", "fold_program_pages", "fold_dropped_pages",
    "beside_pages",
)  # fmt: skip
seen: Counter[str] = Counter()


@pytest.mark.timeout(1800)  # 300 examples
def test_the_drive_is_a_dictionary(counts):
    """And every mechanism has been at work; but for two at most at small counts, since what is
    drawn depends on the numbers that Hypothesis finds in the sources."""
    seen.clear()
    settings = hypothesis.settings(
        max_examples=counts(40, 300),
        stateful_step_count=counts(20, 30),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    stateful.run_state_machine_as_test(Machine, settings=settings)
    idle = [name for name in MECHANISMS if seen[name] == 0]
    assert len(idle) <= counts(2, 0), idle
