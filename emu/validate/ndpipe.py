"""NDPipe's published results compared with the models: `ondie validate ndpipe`.

Owns the rows of layer tables, cuts, bounds and claims, and the classification of each row as fitted
or predicted. Does not own the models that predict them (ndpipe/) or the rows of simulations
(ndpipe_runs.py).
Source: NDPipe (ASPLOS 2024), slides and public repository, at the places that the rows name.

The number of stores, which the sources do not state, is fitted to the published training speedup of
1.8x. The published numbers of parameters and of multiply-accumulate operations of the networks are
checked. All other rows are arithmetic or results of this project.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ondie.emu.analysis.row import CHECK, FIT, IDENTITY, SHOWN, Progress, Row, rows_of_parts
from ondie.emu.ftl.policies import import_file, one_line
from ondie.emu.ndpipe import convergence
from ondie.emu.ndpipe.architectures import NETWORKS, network
from ondie.emu.ndpipe.layers import Network, Shape
from ondie.emu.ndpipe.partition import (
    FP16,
    best_cut,
    central_rate,
    enough_stores,
    fleet,
    rates,
    traffic_ratio,
)
from ondie.emu.ndpipe.servers import jpeg_bytes, server
from ondie.emu.ndpipe.torch_layers import from_torch
from ondie.emu.units import InputError
from ondie.emu.validate.ndpipe_runs import cost_rows, inference_rows, pipeline_rows, version_rows

SUITE = "ndpipe"
PAPER = "NDPipe, ASPLOS 2024"
TORCHVISION, TIMM = "torchvision 0.15", "timm, model card of resnext101_32x4d.gluon_in1k"


class Published(NamedTuple):
    """Published numbers of parameters (``params``) and of multiply-accumulates per image (``macs``)
    of a network. ``params_digits``, ``macs_digits``: relative rounding errors of the two numbers,
    which follow from the number of printed digits. ``params_place``, ``macs_place``: sources of the
    two numbers."""

    params: float
    params_digits: float
    params_place: str
    macs: float
    macs_digits: float
    macs_place: str


TOTALS = {
    "resnet50": Published(
        25_557_032, 0, f"{TORCHVISION}, ResNet50_Weights", 4.089e9, 2e-4,
        f"{TORCHVISION}, ResNet50_Weights",
    ),
    "inceptionv3": Published(
        23.83e6, 3e-4, "STANNIS (DAC 2020), Table I", 5.713e9, 1e-4,
        f"{TORCHVISION}, Inception_V3_Weights",
    ),
    "resnext101-32x4d": Published(44.2e6, 2e-3, TIMM, 8.0e9, 1e-2, TIMM),
    "vit-b-16": Published(
        86_567_656, 0, f"{TORCHVISION}, ViT_B_16_Weights", 17.564e9, 3e-5,
        f"{TORCHVISION}, ViT_B_16_Weights",
    ),
}  # fmt: skip
SIZES = {
    "resnet50": (102.2, 8.20),
    "inceptionv3": (95.3, 8.20),
    "resnext101-32x4d": (176.7, 8.20),
    "vit-b-16": (346.3, 3.08),
}
"""Size of all parameters and of the parameters of the head (MB), as noted from NDPipe's sources."""
FEATURE_RATIO, JPEG_SHARE = 0.0136, 0.037
SPEEDUP, SAVING = 1.8, 1.7
"""Claims of the NDPipe paper: time and cost of training with the typical system divided by those
with NDPipe."""
STORES = 6
"""Number of stores (storage servers), fitted to the claim SPEEDUP."""
SHOWN_STORES = (1, 4, 20)


IMAGE: Shape = (3, 224, 224)
"""Shape (channels, height, width) of the input of a user's model if the function that returns the
model does not also return a shape."""


def ndpipe_rows(progress: Progress, network: str | None = None) -> list[Row]:
    """Return all rows of the suite. With ``network``, return only the rows of a torch model's cuts.

    ``network``: FILE.py:FUNCTION (see :func:`read_network`).
    """
    if network is not None:
        return [*own_rows(read_network(network))]
    parts: list[Callable[[], Iterator[Row]]] = [
        table_rows, cut_rows, choice_rows, bound_rows, claim_rows, partial(cost_rows, STORES),
        pipeline_rows, version_rows, inference_rows,
    ]  # fmt: skip
    return rows_of_parts(SUITE, parts, progress)


def _rows(source: str, place: str = "") -> Callable[..., Row]:
    """Return a function that returns a row with the given source and place.

    The arguments of that function are name, kind, expected, found, unit, tolerance and constants.
    """
    return partial(_row, source, place)


def _row(
    source: str,
    place: str,
    name: str,
    kind: str,
    expected: float | None,
    found: float,
    unit: str = "x",
    tolerance: float | None = None,
    constants: tuple[str, ...] = (),
) -> Row:
    return Row(SUITE, name, kind, expected, found, unit, tolerance, source, place, constants)


def table_rows() -> Iterator[Row]:
    """Yield the rows that compare totals of the layer tables with published totals."""
    text = (
        "layer tables from this project's definitions of the architectures. Tolerance: rounding "
        "of the printed digits; 0 if all digits are printed"
    )
    for name in NETWORKS:
        net, known = network(name), TOTALS[name]
        yield _row(
            text, known.params_place, f"{net.title}: parameters", CHECK, known.params, net.params,
            "", known.params_digits,
        )  # fmt: skip
        yield _row(
            text, known.macs_place, f"{net.title}: multiply-accumulates", CHECK, known.macs / 1e9,
            net.macs / 1e9, "GMAC", known.macs_digits,
        )  # fmt: skip
    row = _rows("arithmetic: 4 bytes per parameter; tolerance: two or three printed digits")
    for name, (whole, head) in SIZES.items():
        net = network(name)
        yield row(f"{net.title}: model", IDENTITY, whole, net.model_bytes / 1e6, "MB", 1e-3)
        yield row(f"{net.title}: head", IDENTITY, head, net.head_bytes / 1e6, "MB", 2e-3)


def cut_rows() -> Iterator[Row]:
    """Yield the rows on cuts of ResNet50: multiply-accumulates before a cut, and size of the data
    that crosses a cut. A cut is named after the last layer that the stores run."""
    net = network("resnet50")
    row = _rows(
        "sums of the layer table, against a closed form of the bottleneck blocks, which has no "
        "layers: 3, 4, 6 and 3 blocks of 64 to 512 channels at 56 to 7 pixels"
    )
    for cut, expected in block_macs().items():
        found = net.macs_before(cut) / 1e9
        title = f"ResNet50: computation up to {cut}"
        yield row(title, IDENTITY, expected / 1e9, found, "GMAC", 0)
    row = _rows(
        "arithmetic: FP16 elements that cross the cut, divided by the 150,528 of the input. "
        "Tolerance: printed digits"
    )
    before = [cut for cut in net.cuts[1:] if net.cut_index(cut) < net.cut_index("layer4")]
    yield row(
        "ResNet50: traffic of a cut at avgpool", IDENTITY, FEATURE_RATIO,
        traffic_ratio(net, "avgpool"), "of input", 5e-3,
    )  # fmt: skip
    yield row(
        "ResNet50: cuts before layer4 that send no more than the input", IDENTITY, 0,
        sum(traffic_ratio(net, cut) <= 1 for cut in before), "cuts", 0,
    )  # fmt: skip
    for cut in net.cuts[1:-1]:
        yield row(f"ResNet50: traffic of a cut at {cut}", SHOWN, None, traffic_ratio(net, cut),
                  "of input")  # fmt: skip
    row = _rows(
        f"arithmetic: 4,096 bytes of features over an average JPEG file of {jpeg_bytes():,} bytes "
        "(assumed). Tolerance: two printed digits"
    )
    yield row(
        "ResNet50: traffic of a cut at avgpool over stored files", IDENTITY, JPEG_SHARE,
        FP16 * net.crossing("avgpool") / jpeg_bytes(), "of JPEG", 0.02,
    )  # fmt: skip


def block_macs() -> dict[str, int]:
    """Return the cumulative number of multiply-accumulate operations of ResNet50 at the end of each
    stage with convolutions.

    A block of w channels at s pixels has convolutions of 1x1, 3x3 and 1x1 from 4 w to 4 w channels:
    17 w^2 s^2 operations. The first block of a layer reads fewer channels and has a 1x1 shortcut.
    Except in layer1, it also reads four times as many pixels before the 3x3 convolution reduces
    them.
    """
    total = 7 * 7 * 3 * 64 * 112**2
    found = {"stem": total}
    for i, blocks in enumerate((3, 4, 6, 3)):
        width, pixels = 64 << i, (56 >> i) ** 2
        given, shrinks = (2 * width, 4) if i else (64, 1)
        first, shortcut = given * width * shrinks * pixels, given * 4 * width * pixels
        total += first + shortcut + 13 * width**2 * pixels + 17 * width**2 * pixels * (blocks - 1)
        found[f"layer{i + 1}"] = total
    return found


def choice_rows() -> Iterator[Row]:
    """Yield the rows of the best cuts (see :func:`best_rows`) for all networks."""
    for name in NETWORKS:
        yield from best_rows(network(name))


def best_rows(net: Network) -> Iterator[Row]:
    """Yield, for a network, one row per number of stores with the best cut and its throughput, and
    one row with the number of stores above which the throughput is constant."""
    row = _rows(
        "this project's result: cut with the highest throughput; of several such cuts, the one "
        "with the least traffic. Stores with a T4, Tuner with a V100, both at the rate of "
        "ResNet50 in mixed precision (ndpipe/servers.toml)"
    )
    for count in SHOWN_STORES:
        found = best_cut(net, fleet(count))
        words = f"{count} store" + ("s" if count > 1 else "")
        title = f"{net.title}, {words}: cut at {found.cut}, limited by {found.limited_by}"
        yield row(title, SHOWN, None, found.throughput, "photos/s")
    title = f"{net.title}: number of stores above which the throughput is constant"
    yield row(title, SHOWN, None, enough_stores(net, fleet(1)), "stores")


def read_network(name: str) -> Network:
    """Return the layer table of a torch model.

    ``name``: FILE.py:FUNCTION. The function has no arguments and returns the model, or the model
    and the shape of its input (channels, height, width). Raises InputError if ``name`` or the
    result of the function has another form, if torch or the function is missing, if the file or the
    function fails, or if ndpipe/torch_layers.py does not support the model.
    """
    path, _, function = name.rpartition(":")
    where = f"--network {name}"
    if not (path.endswith(".py") and function.isidentifier()):
        raise InputError(f"{where}: must be FILE.py:FUNCTION")
    if find_spec("torch") is None:
        raise InputError(f"{where}: requires torch; install it with: pip install 'ondie[train]'")
    make = getattr(import_file(Path(path), "--network"), function, None)
    if not callable(make):
        raise InputError(f"{where}: {path} has no function {function!r}")
    try:
        found = make()
    except Exception as error:  # the user's function may raise any exception
        raise InputError(f"{where}: {function} has failed: {one_line(error)}") from error
    model, shape = found if isinstance(found, tuple) and len(found) == 2 else (found, IMAGE)
    if not (
        isinstance(shape, tuple)
        and len(shape) == 3
        and all(isinstance(edge, int) and edge > 0 for edge in shape)
    ):
        raise InputError(f"{where}: input shape {shape!r}: must be (channels, height, width)")
    return from_torch(model, shape, function)


def own_rows(net: Network) -> Iterator[Row]:
    """Yield the rows of a network: the computation before each cut, the traffic across each cut,
    and the best cut for each number of stores."""
    row = _rows(
        "this project's result, from a run of the model: computation before the cut, and traffic "
        "across the cut"
    )
    for cut in net.cuts[1:]:
        yield row(
            f"{net.title}: computation up to {cut}", SHOWN, None, net.macs_before(cut) / 1e9, "GMAC"
        )
        title = f"{net.title}: traffic of a cut at {cut}"
        yield row(title, SHOWN, None, traffic_ratio(net, cut), "of input")
    yield from best_rows(net)


def bound_rows() -> Iterator[Row]:
    """Yield the rows that evaluate Lemma 5.2 and Theorem 5.1 of the paper."""
    params, samples, probability = network("resnet50").head.params, 100_000, 0.05
    gap = convergence.generalization_gap(params, samples, probability)
    row = _rows(
        "Lemma 5.2: D = sqrt(log(2 P / t) / (2 m)) for the head of ResNet50, 100,000 samples per "
        "run and t = 0.05. The loss of every sample must lie in [0, 1]: a cross entropy does not, "
        "unless it is clipped and scaled. Expected: t. Predicted: the Chernoff bound at D, 2 P exp("
        "s^2 / (8 m) - s D), minimized over s by a search that does not use D's formula"
    )
    found = 2 * params * _chernoff(gap, samples)
    yield row("probability of a larger loss than D allows", IDENTITY, probability, found, "", 1e-6)
    yield row("D", SHOWN, None, gap, "")
    row = _rows(
        "Lemma 5.2 with P = 1 against the exact distribution of the mean of 200 losses that are 0 "
        "or 1 with equal probability; t = 0.05"
    )
    tail = _tail(200, convergence.generalization_gap(1, 200, probability))
    yield row("exact probability of a larger loss", SHOWN, None, tail, "")
    yield row("it is at most t (1 = yes)", IDENTITY, 1, int(tail <= probability), "", 0)
    row = _rows(
        "Theorem 5.1: gradient descent on a linear network of 2 layers of width 1 from 0.95 to "
        "target 1, at the largest learning rate of the theorem, after T2 steps; goal: loss 1e-4"
    )
    steps, loss = _descent(0.95, 1e-4)
    yield row("T2", SHOWN, None, steps, "steps")
    yield row("loss after T2 steps", SHOWN, None, loss, "")
    yield row("it is at most the goal (1 = yes)", IDENTITY, 1, int(loss <= 1e-4), "", 0)


def _chernoff(gap: float, samples: int) -> float:
    """Return the least Chernoff bound on the probability that the mean of ``samples`` losses in
    [0, 1] exceeds its expectation by ``gap``, by ternary search over the exponent."""

    def exponent(scale: float) -> float:
        return scale * scale / (8 * samples) - scale * gap  # Hoeffding's lemma for each loss

    low, high = 0.0, 8.0 * samples
    for _ in range(200):
        third = (high - low) / 3
        if exponent(low + third) < exponent(high - third):
            high -= third
        else:
            low += third
    return math.exp(exponent(low))


def _tail(samples: int, gap: float) -> float:
    """Return the probability that the fraction of heads in ``samples`` tosses of a fair coin
    differs from 1/2 by ``gap`` or more."""
    wrong = sum(
        math.comb(samples, heads)
        for heads in range(samples + 1)
        if abs(heads / samples - 0.5) >= gap
    )
    return wrong / 2**samples


def _descent(start: float, goal: float) -> tuple[int, float]:
    """Return the number of steps T2 of Theorem 5.1, and the loss after T2 steps of gradient
    descent, for two layers of width 1 whose product is initially ``start`` and has the target 1."""
    rate = convergence.largest_rate(start, 2, 1.0)
    loss = (start - 1) ** 2 / 2
    steps = convergence.second_run_steps(loss, goal, rate, start, 2, 1.0)
    weight = math.sqrt(start)
    for _ in range(steps):
        weight -= rate * (weight * weight - 1) * weight
    return steps, (weight * weight - 1) ** 2 / 2


def claim_rows() -> Iterator[Row]:
    """Yield the rows that compare two claims of NDPipe with the model, under stated assumptions:
    the typical system takes 1.8x the time and 1.7x the cost of training with NDPipe. Also yield the
    smallest numbers of stores with which NDPipe is at least 1.8x as fast in the model."""
    net = network("resnet50")
    count = round(STORES)
    store, tuner, host, plain = (server(n) for n in ("store", "tuner", "host", "plain-store"))
    place = f"{PAPER}, slides; the number of stores is not in the sources"
    given = (
        f"Assumed: {count} stores, ResNet50, cut at avgpool, T4 and V100 at their measured rates "
        "in mixed precision, 10 Gbit/s into host and Tuner"
    )
    new = rates(net, "avgpool", fleet(count)).throughput
    sent = {"FP16 inputs": FP16 * net.inputs, "JPEG files": jpeg_bytes()}
    old = {name: central_rate(net, size, count) for name, size in sent.items()}
    fit = _rows(
        f"{given}. The typical system sends FP16 inputs, which saturate the network. Tolerance: "
        "that of a check; this row would be a check if the number of stores were published", place,
    )  # fmt: skip
    yield fit(
        "speed of training over the typical system", FIT, SPEEDUP, new / old["FP16 inputs"],
        "x", 0.1, (f"validate.{SUITE}.STORES",),
    )  # fmt: skip
    row = _rows(
        f"{given}. Not checked: one constant, the number of stores, was fitted to 1.8x. Readings "
        "of 1.7x: price per hour of the servers, or price of training on a photo", place,
    )  # fmt: skip
    price = (host.price + count * plain.price) / (tuner.price + count * store.price)
    yield row("1.7x as price per hour", SHOWN, SAVING, price)
    for name, rate in old.items():
        speedup = new / rate
        if name != "FP16 inputs":
            yield row(f"1.8x if the typical system sends {name}", SHOWN, SPEEDUP, speedup)
        title = f"1.7x as price per photo if the typical system sends {name}"
        yield row(title, SHOWN, SAVING, price * speedup)
    row = _rows(f"{given}. This project's result: smallest number of stores with 1.8x")
    for name, size in sent.items():
        enough = next(
            n for n in range(1, 1000)
            if rates(net, "avgpool", fleet(n)).throughput >= SPEEDUP * central_rate(net, size, n)
        )  # fmt: skip
        title = f"stores for 1.8x if the typical system sends {name}"
        yield row(title, SHOWN, None, enough, "stores")
