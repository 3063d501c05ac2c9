"""Do commands and updates on the dies share one drive? Both run on one engine, and both are there
after a clean stop and after power cuts at any event: the states bit for bit as the kernel makes
them, the mapping units by the contract of their commands.
Source: tests/state/versions.py; ondie.kernels.
"""

import numpy as np
import pytest

from ondie.emu.drive import Drive
from ondie.emu.engine.run import build
from ondie.emu.engine.run.power_system import Start
from ondie.emu.nvme.command import FLUSH, READ, WRITE
from ondie.emu.paths.on_die.drive_states import DriveStates
from ondie.kernels import get
from tests.state.test_power_on import CACHE, SECTORS, some
from tests.state.versions import Versions
from tests.timing.harness import preset

LEAVES = {
    "flash.channels": "2",
    "flash.dies_per_channel": "2",
    "flash.planes_per_die": "4",
    "flash.blocks_per_plane": "24",
    "flash.pages_per_block": "4",
    "flash.page": "512 B",
    "ftl.reservoir_fraction": "0.4",
    "ftl.over_provisioning": "0.4",
    "ftl.gc_low_blocks": "2",
    "ftl.trim_maps": "true",
    "frontend.max_transfer": "8 KiB",
    "host.io_block": "4 KiB",
    "host.io_queue_depth": "16",
}
PARAMS = 9 * 128 - 50
HYPER = {
    "adam": {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "momentum": {"lr": 0.1, "momentum": 0.9},
    "sgd": {"lr": 0.1},
}
DRIVES = {
    "plain": {},
    "write back": CACHE,
    "protected": CACHE | {"cache__power_loss_protection": "true", "cache__hold_up": "1 J"},
    "sectors": SECTORS,
    "free": {"pe__dispatch": "free", "ftl__reservoir_rotate": 2},
    "double buffered": {"pe__dispatch": "double_buffered", "ftl__bad_blocks": 0.02},
    "checkpoints": {"ftl__map_checkpoint": "8 KiB"},
    "records": {"pe__atomicity": "resume"},
    "undo": {"pe__atomicity": "undo"},
    "moves": {"ftl__reservoir_migrate": 1},
}  # fmt: skip


@pytest.fixture(autouse=True)
def few_transactions(monkeypatch):
    """The pool of a large drive takes longer to make than these runs."""
    monkeypatch.setattr(build, "BUDGET", 1024)
    monkeypatch.setattr(build, "ROWS", 1 << 10)


class Both:
    """A drive with states and commands, and what both must hold."""

    def __init__(self, name="plain", op="adam", seed=0, n=PARAMS, **options):
        self.cfg = preset(LEAVES, **DRIVES[name])
        self.seed, self.options = seed, {"queues": 2, "strict": True} | options
        self.op, self.n = op, n
        self.rng = np.random.default_rng((seed, 19))
        self.states = self.fresh()
        self.drive = self.opened()
        self.kernel = get(op, form="canonical")
        self.wanted = {
            name: np.abs(self.rng.normal(size=n)).astype(np.float32)
            for name in ("w", *self.kernel.states)
        }
        self.states.create(self.drive, self.wanted)
        self.updates = 0
        self.gradient = None
        safe = self.cfg.cache.power_loss_protection
        cached = self.cfg.cache.mode == "write_back" and not safe
        self.held = Versions(self.drive, cached=cached, protected=safe)

    def fresh(self):
        """The states as another process would have them: nothing is known of their contents."""
        return DriveStates(self.cfg, self.op, self.n, HYPER[self.op], seed=self.seed)

    def opened(self):
        return Drive(
            self.states.cfg, True, seed=self.seed, reservoir=self.states.reservoir, **self.options
        )

    def begin(self, stop=None):
        """Start an update with a new gradient, and let the kernel do it."""
        self.gradient = self.rng.normal(size=self.n).astype(np.float32)
        self.updates += 1
        self.before = {name: values.copy() for name, values in self.wanted.items()}
        self.kernel(
            self.wanted["w"], self.gradient, [self.wanted[name] for name in self.kernel.states],
            self.kernel.coefficients(HYPER[self.op], self.updates),
        )  # fmt: skip
        self.states.start_update(self.gradient, stop)

    def go_on(self):
        """Start what is left of the update."""
        if self.states.step < self.updates or not self.states.complete:
            self.states.start_update(self.gradient)
            return True
        return False

    def look(self):
        """Compare all vectors on flash with the kernel's."""
        assert self.states.complete and self.states.step == self.updates
        for name, values in self.wanted.items():
            wrong = np.flatnonzero(self.states.stored(name).view("u4") != values.view("u4"))
            assert not len(wrong), f"{name}: {len(wrong)} differ, the first at {wrong[0]}"

    def items(self, most=24):
        return some(self.rng, self.drive, most)

    def restart(self):
        """Close the drive, and open it and the states as another process would."""
        self.drive.close()
        self.states = self.fresh()
        self.drive = self.held.drive = self.opened()
        self.drive.buffer = self.held.memory
        self.states.open(self.drive)


@pytest.mark.parametrize("name", DRIVES)
def test_updates_beside_commands(name, counts):
    """Reads, writes and trims are in flight while the dies update; every byte of both is right."""
    both = Both(name, op="momentum" if name == "free" else "adam")
    for turn in range(counts(4, 40)):
        chosen = both.held.batch(both.items(), 2)
        both.begin()
        both.drive.run()
        both.held.settle(chosen, both.drive.completions())
        both.look()
        if turn % 3 == 2:
            both.held.run([(FLUSH, 0, 0, 0)])
        both.drive.check()
    assert both.drive.arrays.count[0].any()


def test_commands_wait_for_the_dies_that_update():
    """One engine: a read takes longer beside an update, and the update longer beside reads."""
    times = {}
    for what in ("reads", "update", "both"):
        both = Both()
        both.held.run([(WRITE, 0, 16 * 512, 0)])
        begin = both.drive.now
        if what != "update":
            both.held.batch([(READ, unit * 512, 512, 0) for unit in range(16)])
        if what != "reads":
            both.begin()
        both.drive.run()
        done = both.drive.completions()
        last = int(done["end"].max()) - begin if len(done) else 0
        times[what] = last, both.drive.now - begin
    assert times["both"][0] > times["reads"][0]
    assert times["both"][1] > times["update"][1]


def test_an_update_in_ranges():
    """Ranges one after the other are the update; the range that is asked for, and no more."""
    both = Both()
    both.begin(stop=3 * 128)
    both.drive.run()
    assert (both.states.stripes_done, both.states.complete, both.states.step) == (3, False, 1)
    found = both.states.stored("w")
    assert (found[: 3 * 128] == both.wanted["w"][: 3 * 128]).all()
    assert (found[3 * 128 :] == both.before["w"][3 * 128 :]).all()
    both.states.start_update(both.gradient, 7 * 128)
    both.drive.run()
    assert both.states.stripes_done == 7
    assert both.go_on()
    both.drive.run()
    both.look()


def test_weights_are_read_by_the_host():
    both = Both("write back")
    both.begin()
    both.drive.run()
    before = both.drive.now
    both.states.start_read()
    both.drive.run()
    assert (both.states.weights == both.wanted["w"]).all() and both.drive.now > before
    both.drive.check()


# --- stops


@pytest.mark.parametrize("name", DRIVES)
def test_a_clean_stop(tmp_path, name, counts):
    """The states and the units go on where they were, also in the middle of an update."""
    both = Both(name, store=tmp_path / "store")
    for turn in range(counts(3, 20)):
        both.begin(stop=256 if turn % 2 else None)
        both.held.run(both.items(), 2)
        both.held.run([(FLUSH, 0, 0, 0)])
        now = both.drive.now
        both.restart()
        assert both.drive.started is Start.CHECKPOINT
        assert both.drive.now >= now and both.states.recovered is None
        if both.go_on():
            both.drive.run()
        both.look()
        both.held.look()
        both.drive.check()
    both.drive.close()


def test_an_update_in_progress_ends_before_the_drive_is_closed(tmp_path):
    both = Both(store=tmp_path / "store")
    both.begin()
    both.restart()
    assert both.drive.started is Start.CHECKPOINT
    both.look()
    both.drive.close()


# --- power cuts


def survive(both, cuts):
    """An update beside commands, with a power cut after each of ``cuts`` = [(in a recovery, number
    of events)]; then what is left of it. Return the recoveries."""
    found = []
    chosen = both.held.batch(both.items(), 2)
    both.begin()
    off = bool(cuts)
    for at, (_, events) in enumerate(cuts):
        both.drive.power_cut(events)
        both.held.settle(chosen, both.drive.completions())
        both.drive.power_on()
        both.held.look()
        again = at + 1 < len(cuts) and cuts[at + 1][0]
        chosen = both.held.batch(both.items(8), 2)
        if again:
            both.drive.power_cut(cuts[at + 1][1], lambda: both.states.open(both.drive))
            both.held.settle(chosen, both.drive.completions())
            both.drive.power_on()
            both.held.look()
            chosen = []
        both.states = both.fresh()
        both.states.open(both.drive)
        both.held.settle(chosen, both.drive.completions())
        found.append(both.states.recovered)
        chosen = both.held.batch(both.items(8), 2)
        off = both.go_on()
    if off or not cuts:
        both.drive.run()
    else:
        both.drive.run()
    both.held.settle(chosen, both.drive.completions())
    both.look()
    return found


def random_cuts(rng, most=900):
    return [
        (at > 0 and rng.random() < 0.4, int(rng.integers(0, most if at % 2 == 0 else 250)))
        for at in range(int(rng.integers(1, 4)))
    ]


@pytest.mark.parametrize("name", DRIVES)
def test_power_cuts(name, counts):
    """At any event, also in a recovery, up to three of them in an update."""
    kept = padded = undone = 0
    for seed in range(counts(2, 40)):
        both = Both(name, seed=seed, op=["adam", "momentum", "sgd"][seed % 3])
        for _ in range(4):
            for found in survive(both, random_cuts(both.rng)):
                kept += 0 < both.states.stripes and int(found.cursors[0].sum())
                padded += found.padded
                undone += found.undone
            both.drive.check()
    assert kept > 0 and padded > 0 and (undone > 0) == (name == "undo")
