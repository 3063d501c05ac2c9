"""Simulated fine-tuning, updates and inference of NDPipe, and cost and energy of three systems:
part of `ondie validate ndpipe`.

Owns the rows of this part. Does not own the simulation (ndpipe/pipeline.py, ndpipe/npe.py), updates
(ndpipe/versions.py), costs (ndpipe/cost.py) or the claims about the number of stores (ndpipe.py).
Source: NDPipe (ASPLOS 2024), pipelined FT-DMP and version-aware redistribution; slides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ondie.emu.analysis.row import IDENTITY, SHOWN, Row
from ondie.emu.clock import PS_PER_S
from ondie.emu.config.config import Config, load_preset
from ondie.emu.ndpipe import cost, npe
from ondie.emu.ndpipe.architectures import network
from ondie.emu.ndpipe.flash import PhotoDrive
from ondie.emu.ndpipe.layers import Network
from ondie.emu.ndpipe.npe import CORES
from ondie.emu.ndpipe.partition import FP16, fleet
from ondie.emu.ndpipe.pipeline import STAGES, Outcome, Plan, Store, Times, simulate
from ondie.emu.ndpipe.pipeline_bound import pipelined, training_ps
from ondie.emu.ndpipe.servers import inference_constant, jpeg_bytes
from ondie.emu.ndpipe.versions import StoreModel, Versions, transfer

SUITE = "ndpipe"
DRIVE = "gen4-tlc"
STORES, PER_RUN, BATCH = 3, 6, 64
"""Simulated fine-tuning: number of stores, number of batches of each store per pipelined run, and
number of photos per batch."""
RUNS = (1, 2, 10)
US = PS_PER_S // 10**6
UPDATED = "resnet50"
"""Name of the network in the validation rows on model updates. A model update sends the trained
head to the stores."""

INFERRED, BATCHES = 1024, (64, 256)
"""Settings of inference: number of photos in each store, and number of photos per batch without and
with the optimization "batch" (npe.OPTIMIZATIONS)."""
CLAIM, PLACE = 1.7, "NDPipe, ASPLOS 2024, slides; the number of stores is not in the sources"


def measured_times(net: Network, epochs: int = 1) -> Times:
    """Return the times per photo on NDPipe's servers, for a network that is cut before its head."""
    servers, cut = fleet(1), net.cuts[-1]
    size = FP16 * net.crossing(cut)
    decode, resize, normalize = (round(US * inference_constant(f"{name}_us")) for name in CORES)
    return Times(
        decode,
        resize,
        normalize,
        features=round(PS_PER_S * net.macs_before(cut) / servers.store_macs_per_s),
        send=round(PS_PER_S * size / servers.store_bytes_per_s),
        receive=round(PS_PER_S * size / servers.tuner_bytes_per_s),
        train=round(PS_PER_S * epochs * 2 * net.head.macs / servers.tuner_macs_per_s),
    )


def _cases() -> dict[str, Times]:
    """Return times per photo of fine-tuning, by name of the case. In each case, a different stage
    (such as computing features, sending them, or training) is the slowest."""
    times = measured_times(network("resnet50"))
    load = replace(times, decode=0, resize=0, normalize=0, features=0)
    return {
        "measured rates": times,
        "all times 0 but load and networks": load,
        "a Tuner that takes as long as the stores": replace(times, train=times.features // STORES),
        "a Tuner that takes twice as long": replace(times, train=2 * times.features // STORES),
        "a network of 10 Mbit/s": replace(times, receive=1000 * times.receive),
    }


def pipeline_rows() -> Iterator[Row]:
    """Yield rows that compare the time of simulated fine-tuning with the closed form, and rows of
    fine-tuning with a slow or dead store."""
    cfg = load_preset(DRIVE)
    load = _load_ps(cfg)
    source = (
        f"ResNet50 cut at avgpool; {STORES} stores with a drive {DRIVE} each, which simulates "
        f"every read of a photo, {PER_RUN} batches of {BATCH} photos per store and run; closed "
        "form: time to fill the stages + N T(N). Times are equal in all runs. Tolerance: 0.1 %"
    )
    for case, times in _cases().items():
        for runs in RUNS:
            found = _simulated(cfg, times, runs)
            name = f"{case}, {runs} run{'s' if runs > 1 else ''}: limited by {found.limited_by}"
            expected = _expected_ps(times, load, runs) / PS_PER_S
            yield Row(SUITE, name, IDENTITY, expected, found.end_ps / PS_PER_S, "s", 1e-3, source)
    yield from _overlap_rows(cfg)
    yield from _store_rows(cfg, measured_times(network("resnet50")))


def _load_ps(cfg: Config) -> float:
    """Return the mean time to load a batch on a drive if no other stage runs (ps)."""
    count = PER_RUN * max(RUNS)
    drive, now = PhotoDrive(cfg, count * BATCH, jpeg_bytes()), 0
    for i in range(count):
        now = drive.load(now, i * BATCH, BATCH)
    drive.close()
    return now / count


def _simulated(cfg: Config, times: Times, runs: int) -> Outcome:
    """Return the outcome of a simulated fine-tuning in ``runs`` pipelined runs, with STORES equal
    stores."""
    stores = [Store(PER_RUN * BATCH * runs)] * STORES
    return simulate(stores, times, Plan(runs, BATCH, jpeg_bytes()), cfg)


def _expected_ps(times: Times, load: float, runs: int) -> float:
    """Return the time of the fine-tuning that :func:`_simulated` simulates, by the closed form
    (ps). ``load``: mean time to load a batch on a drive (ps)."""
    stages = [load, *(BATCH * times.stage(stage) for stage in range(1, len(STAGES)))]
    train = STORES * PER_RUN * BATCH * times.train
    return training_ps(stages, BATCH * times.receive, STORES, PER_RUN, runs, train)


def _overlap_rows(cfg: Config) -> Iterator[Row]:
    """Yield the rows of the speedup if the photos are processed in several pipelined runs."""
    times = _cases()["a Tuner that takes as long as the stores"]
    source = (
        "T(N) / T(1) of the same photos, with a Tuner that takes as long as the stores; expected: "
        "the paper's [Ts + Tt + (N - 1) max(Ts, Tt)] / N, which leaves out the time to fill the "
        "stages. Tolerance: one batch of 60 in a store"
    )
    photos, ends = PER_RUN * BATCH * max(RUNS), {}
    for runs in RUNS:
        plan = Plan(runs, BATCH, jpeg_bytes())
        ends[runs] = simulate([Store(photos)] * STORES, times, plan, cfg).end_ps
    for runs in RUNS[1:]:
        expected = pipelined(1, 1, runs) / pipelined(1, 1, 1)
        yield Row(
            SUITE, f"time of {runs} runs over that of one", IDENTITY, expected,
            ends[runs] / ends[1], "x", 1 / (PER_RUN * max(RUNS)), source,
        )  # fmt: skip


def _store_rows(cfg: Config, times: Times) -> Iterator[Row]:
    """Yield the rows of fine-tuning with a slow store, and those with a store that dies: time until
    the Tuner has all features, trained photos and lost photos."""
    photos = 40 * BATCH
    plan = Plan(1, BATCH, jpeg_bytes(), copies=True)
    alike = simulate([Store(photos)] * STORES, times, plan, cfg).ready_ps[0]
    slow = [Store(photos, speed=0.5), *[Store(photos)] * (STORES - 1)]
    source = (
        "one of 3 stores at half speed, each batch with a copy on one other store; time until the "
        "Tuner has all features, relative to equal stores. Expected: 2, and 3 / 2.5 if batches are "
        "balanced. Tolerance: one batch of 40"
    )
    for name, balance, expected in (("own shards", False, 2.0), ("balanced", True, 1.2)):
        found = simulate(slow, times, replace(plan, balance=balance), cfg).ready_ps[0]
        yield Row(
            SUITE, f"a slow store, {name}", IDENTITY, expected, found / alike, "x", 1 / 40, source
        )
    source = (
        "one of 3 stores dies after half of that time; the failure is noticed after 1 s. With a "
        "copy, another store handles the batches that it has not sent"
    )
    dead = [Store(photos, fails_ps=alike // 2), *[Store(photos)] * (STORES - 1)]
    for name, copies in (("with copies", True), ("without copies", False)):
        end = simulate(dead, times, replace(plan, copies=copies), cfg)
        trained = sum(count * batch.photos for batch, count in end.trained.items())
        lost = sum(batch.photos for batch in end.lost)
        title = f"a dead store, {name}"
        yield Row(
            SUITE, f"{title}: photos trained or named as lost", IDENTITY, STORES * photos,
            trained + lost, "photos", 0, source,
        )  # fmt: skip
        often = max(end.trained.values())
        yield Row(
            SUITE,
            f"{title}: most times that a photo is trained",
            IDENTITY,
            1,
            often,
            "",
            0,
            source,
        )
        yield Row(SUITE, f"{title}: photos lost", SHOWN, None, lost, "photos", None, source)
        yield Row(SUITE, f"{title}: time until all features have arrived", SHOWN, None,
                  end.ready_ps[0] / alike, "x", None, source)  # fmt: skip


def version_rows() -> Iterator[Row]:
    """Yield rows for a model update after training of the head: the size of the delta, and whether
    the model of the store equals the model of the Tuner."""
    net, rng = network(UPDATED), np.random.default_rng(24)
    frozen = rng.integers(0, 1 << 32, net.params - net.head.params, np.uint32)
    weights = rng.standard_normal(net.head.params, np.float32)
    step = 1e-3 * rng.standard_normal(net.head.params, np.float32)
    first, second = (
        np.concatenate([frozen, head.view(np.uint32)]) for head in (weights, weights + step)
    )
    source = (
        "the head changes, all other layers are frozen; a delta with the changed words, "
        "uncompressed. Tolerance: 1 %"
    )
    tuner = Versions(first, pack=False)
    tuner.publish(second)
    update = tuner.update(0)
    yield Row(
        SUITE, f"{net.title}: delta", IDENTITY, net.head_bytes / 1e6,
        len(update.message) / 1e6, "MB", 0.01, source,
    )  # fmt: skip
    store = StoreModel()
    store.version, store.model = 0, tuner.model(0)
    transfer(store, update)
    same = np.array_equal(store.model, tuner.model(1))
    title = f"{net.title}: the store then has the bytes of the Tuner (1 = yes)"
    yield Row(SUITE, title, IDENTITY, 1, int(same), "", 0, source)
    source = (
        "this project's result: weights change by a thousandth of their standard deviation; "
        "compressed delta"
    )
    tuner = Versions(first)
    tuner.publish(second)
    found = len(tuner.update(0).message)
    title = f"{net.title}: compressed delta, relative to the head"
    yield Row(SUITE, title, SHOWN, None, found / net.head_bytes, "x", None, source)
    title = f"{net.title}: model, relative to the compressed delta"
    yield Row(SUITE, title, SHOWN, None, net.model_bytes / found, "x", None, source)


def inference_rows() -> Iterator[Row]:
    """Yield the rows that compare the simulated throughput of inference with its closed form. Each
    row adds one optimization. Further rows show the gain and the bytes read."""
    net, cfg = network("resnet50"), load_preset(DRIVE)
    source = (
        f"inference with ResNet50 on {STORES} stores with a drive {DRIVE} each, which simulates "
        "every read; each row adds an optimization. Closed form: stores over the sum of a photo's "
        "times without pipelining, over the time of the slowest resource with it; the time of a "
        "load is that of the simulation. Tolerance: 0.1 %"
    )
    found = list(npe.ladder(net, cfg, npe.OPTIMIZATIONS, STORES, INFERRED, BATCHES))
    for each in found:
        name = each.optimizations[-1] if each.optimizations else "no optimization"
        yield Row(
            SUITE, f"inference, {name}: limited by {each.bottleneck}", IDENTITY,
            each.expected_photos_per_s(STORES), each.photos_per_s, "photos/s", 1e-3, source,
        )  # fmt: skip
    source = (
        "this project's result, with assumed times of decoding and inflating, an assumed gain of "
        "INT8 and of larger batches (ndpipe/servers.toml)"
    )
    gain = found[-1].photos_per_s / found[0].photos_per_s
    yield Row(SUITE, "inference: gain of all optimizations", SHOWN, None, gain, "x", None, source)
    for each in found[2:4]:
        title = f"inference, {each.optimizations[-1]}: bytes read, relative to the JPEG file"
        ratio = each.read_bytes / found[0].read_bytes
        yield Row(SUITE, title, SHOWN, None, ratio, "x", None, source)


def cost_rows(count: int) -> Iterator[Row]:
    """Yield the rows of cost and energy of NDPipe relative to the typical and the ideal system,
    with ``count`` stores."""
    net = network("resnet50")
    new, ideal = (cost.point(system, net, count) for system in (cost.NDPIPE, cost.IDEAL))
    assumed = (
        f"Assumed: {count} stores, fitted to 1.8x; ResNet50, cut at avgpool; prices of 2024-04 "
        "(ndpipe/servers.toml)"
    )
    source = (
        f"{assumed}. Reading of 1.7x: price per hour of the servers, with the fewest stores that "
        f"train as fast as the typical system with {count} stores does"
    )
    for sent in cost.SENT:
        old = cost.point(cost.TYPICAL, net, count, sent=sent)
        equal = cost.equal_speed(net, count, sent)
        words = f"if the typical system sends {_words(sent)}"
        title = f"1.7x as price per hour at no less speed {words}, {equal.stores} stores"
        ratio = old.dollars_per_hour / equal.dollars_per_hour
        yield Row(SUITE, title, SHOWN, CLAIM, ratio, "x", None, source, PLACE)
    source = (
        f"{assumed}. Nothing is published; the powers of all servers are assumed. The ideal system "
        "is a host that has all photos on its own drives"
    )
    for sent in cost.SENT:
        old = cost.point(cost.TYPICAL, net, count, sent=sent)
        title = f"energy of training on a photo, typical over NDPipe, {_words(sent)}"
        yield Row(SUITE, title, SHOWN, None, old.joules / new.joules, "x", None, source)
    for name, ratio in (
        ("speed of training, NDPipe over ideal", new.photos_per_s / ideal.photos_per_s),
        ("price of training on a photo, ideal over NDPipe", ideal.dollars / new.dollars),
        ("energy of training on a photo, ideal over NDPipe", ideal.joules / new.joules),
    ):
        yield Row(SUITE, name, SHOWN, None, ratio, "x", None, source)


def _words(sent: str) -> str:
    """Return a noun phrase for the data that the typical system sends. ``sent``: cost.INPUTS or
    cost.JPEG."""
    return {cost.INPUTS: "FP16 inputs", cost.JPEG: "JPEG files"}[sent]
