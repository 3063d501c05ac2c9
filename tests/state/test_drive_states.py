"""Do commands and updates on the dies share one drive? Both run on one engine, and both are there
after a clean stop and after power cuts at any event: the states bit for bit as the kernel makes
them, the mapping units by the contract of their commands.
Source: tests/state/versions.py; ondie.kernels.
"""

import shutil

import numpy as np
import pytest

from ondie.emu.analysis.compare import Run
from ondie.emu.drive import Drive
from ondie.emu.engine.core import plan_rows
from ondie.emu.engine.core.conservation import Imbalance
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.engine.run.power_system import Start
from ondie.emu.ftl.reservoir_recovery import Unrecoverable
from ondie.emu.nand import conventional_pages, parity_records
from ondie.emu.nvme.command import FLUSH, READ, WRITE
from ondie.emu.paths.base import Options
from ondie.emu.states import reservoir_scan
from ondie.emu.states.drive_states import DriveStates
from ondie.emu.units import InputError
from ondie.kernels import get
from tests.state.models import model
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
"""Parameters of the states, on pages of 512 B."""
UNITS = {"flash__page": "2 KiB", "ftl__mapping_unit": "512 B", "host__io_block": "8 KiB"}
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
    "parity": {"pe__rain": 3},
    "parity, records": {"pe__rain": 4, "pe__atomicity": "resume", "ftl__reservoir_rotate": 2},
    "units": UNITS,
    "units, write back": UNITS | CACHE | SECTORS | {"pe__dispatch": "free"},
    "units, checkpoints, undo": UNITS | {"ftl__map_checkpoint": "8 KiB",
                                            "pe__atomicity": "undo"},
}  # fmt: skip


OFTEN = ("plain", "protected", "undo", "parity", "units, write back")
ALL = [name if name in OFTEN else pytest.param(name, marks=pytest.mark.soak) for name in DRIVES]


pytestmark = pytest.mark.usefixtures("few_transactions")


class Both:
    """A drive with states and commands, and what both must hold."""

    def __init__(self, name="plain", op="adam", seed=0, stripes=9, more=None, **options):
        """``more``: further keys."""
        self.cfg = preset(LEAVES, **DRIVES[name] | (more or {}))
        n = stripes * (self.cfg.flash.page_bytes // 4) - 50
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


@pytest.mark.parametrize("name", ALL)
def test_updates_beside_commands(name, counts):
    """Reads, writes and trims are in flight while the dies update; every byte of both is right."""
    both = Both(name, op="momentum" if name == "free" else "adam")
    for turn in range(counts(3, 15)):
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


@pytest.mark.parametrize(
    "changes",
    [{}, {"pe__dispatch": "free"}, {"pe__protection": "controller_ecc"},
     {"ftl__reservoir_rotate": 1, "pe__atomicity": "resume"}],
)  # fmt: skip
def test_mapping_units_do_not_change_the_dies(changes):
    """The dies work on whole pages, whatever the namespace of commands maps: the same times, the
    same energy, the same bytes, and four counted units for each page."""
    found = []
    for unit in ("0", "512 B"):
        cfg = preset(LEAVES, **UNITS | {"ftl__mapping_unit": unit} | changes)
        trace = model("adam", 2, (("a", (9 * 512 - 50,), 0), ("b", (100,), 1)))
        run = Run("on_die", cfg, trace, Options(), payload=True)
        assert run.step(0) and run.step(1)
        assert (run.path.payload.stored("w") == run.arithmetic.reference(2)).all()
        totals, _, _, joules = run.account()
        found.append((run.clock.steps, joules.drive, totals.counters))
    assert found[0][:2] == found[1][:2]
    for name in ("bpp_pages", "bpr_pages", "vpp_pages", "turned_pages"):
        assert found[1][2][name] == 4 * found[0][2][name], name


# --- stops


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ALL)
def test_a_clean_stop(tmp_path, name, counts):
    """The states and the units go on where they were, also in the middle of an update."""
    both = Both(name, store=tmp_path / "store")
    for turn in range(counts(2, 10)):
        in_parts = turn % 2 and not both.cfg.pe.rain
        both.begin(stop=2 * both.states.stripe_params if in_parts else None)
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


def random_cuts(rng, most=400):
    return [
        (at > 0 and rng.random() < 0.4, int(rng.integers(0, most if at % 2 == 0 else 250)))
        for at in range(int(rng.integers(1, 4)))
    ]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ALL)
def test_power_cuts(name, counts):
    """At any event, also in a recovery, up to three of them in an update."""
    kept = padded = undone = 0
    for seed in range(counts(2, 12)):
        both = Both(name, seed=seed, op=["adam", "momentum", "sgd"][seed % 3])
        for _ in range(4):
            for found in survive(both, random_cuts(both.rng)):
                kept += 0 < both.states.stripes and int(found.cursors[0].sum())
                padded += found.padded
                undone += found.undone
            both.drive.check()
    assert kept > 0 and padded > 0
    undoes = both.cfg.pe.atomicity == "undo"
    assert (undone > 0) == undoes or (undoes and counts(True, False))


def test_a_protected_drive_starts_nothing_after_the_cut():
    """The capacitors end what is in progress; the host that sends gradients has no power."""
    both = Both("protected", stripes=36)
    both.begin()
    both.drive.power_cut(60)
    rows = both.drive.arrays.row
    started = rows["start"][rows["state"] >= plan_rows.STARTED]
    assert len(started) and started.max() <= both.drive.held_up.cut_ps
    assert both.drive.held_up.end_ps > both.drive.held_up.cut_ps


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dispatch", ["lockstep", "double_buffered"])
def test_registers_are_free_for_the_cache(dispatch, counts):
    """Wherever the update is, every die programs what is dirty, and nothing is lost."""
    for events in range(3, 120, counts(13, 2)):
        both = Both("protected", stripes=16, more={"pe__dispatch": dispatch})
        both.held.run([(WRITE, unit * 512, 512, 0) for unit in range(40)])
        both.begin()
        both.drive.power_cut(events)
        assert both.drive.held_up.lost == (0, 0)


@pytest.mark.parametrize("name", ["free", "parity, records"])
def test_erase_counts_are_on_flash(name):
    """Blocks with a page have theirs after a cut, and planes wear as they are rotated."""
    both = Both(name)
    for _ in range(24):
        both.begin()
        both.drive.run()
    geometry = both.drive.geometry
    before = both.drive.arrays.block["erases"].reshape(-1, geometry.all_blocks).copy()
    worn = both.drive.arrays.worn.copy()
    held = both.drive.arrays.valid.reshape(-1, geometry.all_blocks) > 0
    held[:, : geometry.blocks] = False
    assert before[held].min() > 0
    both.drive.power_cut(0)
    both.drive.power_on()
    both.states.open(both.drive)
    after = both.drive.arrays.block["erases"].reshape(-1, geometry.all_blocks)
    assert (after[held] == before[held]).all()
    exact = held[:, geometry.blocks :].reshape(-1)
    assert (both.drive.arrays.worn[exact] == worn[exact]).all() and worn[exact].any()
    both.drive.check()


@pytest.mark.parametrize("name", ["records", "parity", "units, write back"])
def test_a_killed_process(tmp_path, name, counts):
    """The files as they are at any event: what the next process finds is continued."""
    for seed in range(counts(1, 10)):
        both = Both(name, seed=seed, store=tmp_path / f"{seed}")
        both.held.run(both.items(), 2)
        both.begin()
        chosen = both.held.batch(both.items(), 2)
        both.drive.run_until(max_events=int(both.rng.integers(0, 700)))
        both.held.settle(chosen, both.drive.completions())
        shutil.copytree(tmp_path / f"{seed}", tmp_path / f"killed {seed}")
        both.drive.close()
        both.options["store"] = tmp_path / f"killed {seed}"
        both.states = both.fresh()
        both.drive = both.held.drive = both.opened()
        assert both.drive.started is Start.RECOVERY
        both.states.open(both.drive)
        both.held.look()
        if both.go_on():
            both.drive.run()
        both.look()
        both.drive.check()
        both.restart()
        both.look()
        both.drive.close()


def test_a_parity_in_files_makes_every_stripe_again(tmp_path):
    """After a clean stop and a kill: pages, and the out-of-band data that locate them."""
    both = Both("parity, records", store=tmp_path / "store")
    for start in (Start.CHECKPOINT, Start.RECOVERY):
        for _ in range(6):  # until blocks have been erased
            both.begin()
            both.drive.run()
        if start is Start.RECOVERY:
            shutil.copytree(tmp_path / "store", tmp_path / "killed")
            both.options["store"] = tmp_path / "killed"
        both.restart()
        assert both.drive.started is start
        both.look()
        payload, store = both.states._payload, both.drive.moved.store
        for stripe in range(both.states.stripes):
            pages = payload.pages(0, stripe)
            records = np.stack([parity_records.covered(store, ppn) for ppn in pages])
            again, beside = payload.rebuilt(0, stripe)
            assert (again == np.stack([store.read(ppn) for ppn in pages])).all()
            assert (beside == records).all()
        assert max(store.erase_count(page) for page in payload.pages(0, 0)) > 0
    both.drive.close()


def test_a_store_is_read_without_a_change(tmp_path):
    both = Both(store=tmp_path / "store")
    both.begin()
    both.drive.run()
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    both.drive.close()
    before = {path: path.read_bytes() for path in (tmp_path / "killed").iterdir()}
    both.options |= {"store": tmp_path / "killed", "read_only": True}
    both.drive = both.opened()
    both.states.open(both.drive)
    both.look()
    with pytest.raises(InputError, match="the drive is read-only: .*read_only"):
        both.states.start_update(both.gradient)
    both.drive.close()
    assert before == {path: path.read_bytes() for path in (tmp_path / "killed").iterdir()}


def reservoir_not_skipped(monkeypatch):
    monkeypatch.setattr(
        conventional_pages, "conventional", lambda geometry, blocks: np.ones(len(blocks), bool)
    )


def torn_super_pages_taken(monkeypatch):
    monkeypatch.setattr(reservoir_scan, "check_newest", lambda scan, intact: True)


def results_begin_again(monkeypatch):
    """What is on flash is updated a second time."""
    run = reservoir_scan.ReservoirScan.run

    def forgetful(self):
        run(self)
        self.cursors = tuple(np.zeros_like(cursor) for cursor in self.cursors)

    monkeypatch.setattr(reservoir_scan.ReservoirScan, "run", forgetful)


@pytest.mark.soak
@pytest.mark.parametrize(
    "break_it", [reservoir_not_skipped, torn_super_pages_taken, results_begin_again]
)
def test_what_the_power_cuts_catch(monkeypatch, break_it):
    break_it(monkeypatch)
    with pytest.raises((AssertionError, Unrecoverable, InputError, SimulationError, Imbalance)):
        for seed in range(12):
            both = Both(seed=seed)
            for _ in range(4):
                survive(both, random_cuts(both.rng))
                both.drive.check()


# --- bad input


def test_bad_input():
    both = Both()
    states, drive = both.states, both.drive
    zeros = np.zeros(PARAMS, np.float32)
    for call, words in (
        (lambda: states.start_update(zeros[:-1]), r"gradient: has shape \(1101,\); must be"),
        (lambda: states.start_update(zeros.astype(np.float64)), r"gradient: must be float32\[1102"),
        (lambda: states.start_update([0.0]), r"gradient: must be float32"),
        (lambda: states.start_update(zeros, 100), "stop = 100: must be a multiple of 128"),
        (lambda: states.start_update(zeros, 0), "stop = 0: must be from 1"),
        (lambda: states.create(drive, both.wanted), "in use; call open\\(\\) instead"),
        (lambda: states.open(drive), "is empty; call create\\(\\) first"),
        (lambda: states.create(Drive(both.cfg, True), both.wanted), "reservoir=states.reservoir"),
        (lambda: both.fresh().stored("w"), r"not open; call create\(\) or open\(\) first"),
        (
            lambda: both.fresh().create(both.opened(), {}),
            r"vectors\['w'\]: missing; must be float32",
        ),
        (lambda: DriveStates("gen4-tlc", "adam", 10, HYPER["adam"]), "on_die: no processing"),
        (lambda: DriveStates(both.cfg, "adam", 1 << 40, HYPER["adam"]), "of super-pages per"),
        (lambda: DriveStates(both.cfg, "adam", 0, HYPER["adam"]), "n_params = 0"),
        (lambda: drive.follow(None) or drive.start(iter(())), "plans cannot move this drive's"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    states.create(both.opened(), both.wanted)
    states.start_update(zeros)
    with pytest.raises(InputError, match="an update is running"):
        states.start_update(zeros)


@pytest.mark.parametrize(
    ("op", "change", "words"),
    [
        ("adamm", {}, 'op = "adamm": unknown; nearest: adam'),
        (["adam"], {}, "op = .*: unknown; nearest: adam"),
        (
            "adam",
            {"beta1": None},
            "hyper: adam: hyperparameter 'beta1' is missing .takes lr, beta1",
        ),
        ("adam", {"beta3": 0.9}, "hyper: unknown hyperparameter of adam 'beta3'; did you mean"),
        ("adam", {"lr": "0.1"}, r"hyper\['lr'\] = \"'0.1'\": must be a number"),
        ("adam", {"lr": [0.1]}, "hyper: adam: lr = .*; must be a number"),
        ("adam", {"beta1": 1.0}, "hyper: adam: beta1 = 1.0, expected 0 <= beta1 < 1"),
        ("sgd", {"momentum": 0.9}, "hyper: unknown hyperparameter of sgd 'momentum'"),
    ],
)
def test_bad_optimizers(op, change, words):
    """At construction, and a change of the hyperparameters at the next update, which starts
    nothing."""
    both = Both()
    given = {**HYPER["sgd" if op == "sgd" else "adam"], **change}
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(InputError, match=words):
        DriveStates(both.cfg, op, PARAMS, given)
    if op == "adam":
        both.states.hyper = given
        with pytest.raises(InputError, match=words):
            both.states.start_update(np.zeros(PARAMS, np.float32))
        assert both.states.step == 0 and both.drive.plan_done
    with pytest.raises(InputError, match="hyper = .*must be a dict"):
        DriveStates(both.cfg, "adam", PARAMS, [0.1])


def test_a_store_of_other_states(tmp_path):
    both = Both(store=tmp_path / "store")
    both.drive.close()
    more = DriveStates(both.cfg, "adam", PARAMS + 128, HYPER["adam"])
    with Drive(both.cfg, True, reservoir=more.reservoir, store=tmp_path / "store") as drive:
        assert drive.started is Start.RECOVERY  # its tables have another size
        with pytest.raises(Unrecoverable, match="no complete version of super-page 9"):
            more.open(drive)
    with Drive(both.cfg, True, store=tmp_path / "store") as drive:
        assert drive.read(0, 512).shape == (512,)  # commands need no reservoir
