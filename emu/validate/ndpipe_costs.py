"""Inference in NDPipe's stores, and cost and energy of three systems: part of `ondie validate
ndpipe`.

Owns these rows. Does not own the models (ndpipe/npe.py, ndpipe/cost.py) or the claims of the number
of stores (ndpipe.py).
Source: NDPipe (ASPLOS 2024), slides.
"""

from __future__ import annotations

from collections.abc import Iterator

from ondie.emu.analysis.row import IDENTITY, SHOWN, Row
from ondie.emu.config.config import load_preset
from ondie.emu.ndpipe import cost, npe
from ondie.emu.ndpipe.architectures import network

SUITE = "ndpipe"
DRIVE = "gen4-tlc"
STORES, PHOTOS, BATCHES = 3, 1024, (64, 256)
"""Number of stores, photos of each, and photos per batch without and with larger batches."""
CLAIM, PLACE = 1.7, "NDPipe, ASPLOS 2024, slides; the number of stores is not in our sources"


def inference_rows() -> Iterator[Row]:
    """Yield inference with one optimization more each time, against its closed form."""
    net, cfg = network("resnet50"), load_preset(DRIVE)
    source = (
        f"inference with ResNet50 on {STORES} stores with a drive {DRIVE} each, which simulates "
        "every read; each row adds an optimization. Closed form: stores over the sum of a photo's "
        "times without pipelining, over the time of the slowest resource with it; the time of a "
        "load is that of the simulation. Tolerance: 0.1 %"
    )
    found = list(npe.ladder(net, cfg, npe.OPTIMIZATIONS, STORES, PHOTOS, BATCHES))
    for each in found:
        name = each.optimizations[-1] if each.optimizations else "no optimization"
        yield Row(
            SUITE, f"inference, {name}: limited by {each.bottleneck}", IDENTITY,
            each.expected_photos_per_s(STORES), each.photos_per_s, "photos/s", 1e-3, source,
        )  # fmt: skip
    source = (
        "our own result, with assumed times of decoding and inflating, an assumed gain of INT8 and "
        "of larger batches (ndpipe/servers.toml)"
    )
    gain = found[-1].photos_per_s / found[0].photos_per_s
    yield Row(SUITE, "inference: gain of all optimizations", SHOWN, None, gain, "x", None, source)
    for each in found[2:4]:
        title = f"inference, {each.optimizations[-1]}: bytes read, relative to the JPEG file"
        ratio = each.read_bytes / found[0].read_bytes
        yield Row(SUITE, title, SHOWN, None, ratio, "x", None, source)


def cost_rows(count: int) -> Iterator[Row]:
    """Yield cost and energy of NDPipe relative to the typical and the ideal system, with ``count``
    stores."""
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
    """Return what the typical system sends, in words."""
    return {cost.INPUTS: "FP16 inputs", cost.JPEG: "JPEG files"}[sent]
