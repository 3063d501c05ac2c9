"""Layer tables of the four networks that NDPipe fine-tunes.

Owns the definitions of ResNet50, InceptionV3, ResNeXt101-32x4d and ViT-B/16 for 1,000 classes. Does
not own the arithmetic of a layer (layers.py).
Source: He et al. 2016 with the stride in the 3x3 convolution (v1.5); Szegedy et al. 2016 without
the auxiliary classifier; Xie et al. 2017; Dosovitskiy et al. 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from ondie.emu.ndpipe.layers import Builder, Network, Shape
from ondie.emu.units import InputError, known_names

CLASSES = 1000
"""Number of classes of ImageNet-2012."""


def _bottlenecks(
    name: str, title: str, blocks: Sequence[int], groups: int, group_width: int
) -> Network:
    """Return a residual network of bottleneck blocks for images of 224 x 224 pixels.

    ``blocks``: number of blocks in each of the four stages. ``groups``: groups of the 3x3
    convolutions. ``group_width``: channels per group in the first stage.
    """
    shape: Shape = (3, 224, 224)
    build = Builder(name, title, shape)
    shape = build.conv(shape, "conv1", 64, 7, stride=2, pad=3)
    shape = build.pool(shape, "maxpool", 3, 2, 1)
    build.end_stage("stem", shape)
    for stage, count in enumerate(blocks):
        width, out = groups * group_width << stage, 256 << stage
        for block in range(count):
            prefix, start = f"layer{stage + 1}.{block}", shape
            stride = 2 if stage and not block else 1
            inner = build.conv(start, f"{prefix}.conv1", width, 1)
            inner = build.conv(
                inner, f"{prefix}.conv2", width, 3, stride=stride, pad=1, groups=groups
            )
            shape = build.conv(inner, f"{prefix}.conv3", out, 1)
            if not block:
                build.conv(start, f"{prefix}.downsample", out, 1, stride=stride)
        build.end_stage(f"layer{stage + 1}", shape)
    values = build.average(shape, "avgpool")
    build.end_stage("avgpool", values)
    build.end_stage("fc", build.dense(values, "fc", CLASSES))
    return build.network()


def resnet50() -> Network:
    """Return the layer table of ResNet50 (v1.5) for images of 224 x 224 pixels."""
    return _bottlenecks("resnet50", "ResNet50", (3, 4, 6, 3), 1, 64)


def resnext101() -> Network:
    """Return the layer table of ResNeXt101-32x4d for images of 224 x 224 pixels."""
    return _bottlenecks("resnext101-32x4d", "ResNeXt101-32x4d", (3, 4, 23, 3), 32, 4)


Step = tuple[int, int | tuple[int, int]]
"""Parameters of one convolution of a branch: number of output channels, and size of the square
kernel or its (height, width). Its padding preserves the size of the feature map."""


def _branch(build: Builder, shape: Shape, name: str, steps: Sequence[Step]) -> Shape:
    """Append convolutions with stride 1 and size-preserving padding; return the shape of the
    output."""
    for i, (channels, kernel) in enumerate(steps):
        pad = tuple(edge // 2 for edge in kernel) if isinstance(kernel, tuple) else kernel // 2
        shape = build.conv(shape, f"{name}.{i}", channels, kernel, pad=pad)  # type: ignore[arg-type]
    return shape


def _mixed(build: Builder, shape: Shape, name: str, branches: Sequence[Sequence[Step]]) -> Shape:
    """Append an inception block and return the shape of the concatenated outputs. Each branch
    starts from ``shape``; the last branch starts with a 3x3 average pooling."""
    channels = 0
    for i, steps in enumerate(branches):
        start = shape
        if i == len(branches) - 1:
            start = build.pool(shape, f"{name}.pool", 3, 1, 1)
        channels += _branch(build, start, f"{name}.{i}", steps)[0]
    out = channels, shape[1], shape[2]
    build.end_stage(name, out)
    return out


def _reduction(
    build: Builder, shape: Shape, name: str, branches: Sequence[Sequence[Step]]
) -> Shape:
    """Append an inception block that halves height and width, and return the shape of the
    concatenated outputs. The last convolution of each branch has stride 2 and no padding (3x3
    kernels in InceptionV3); a 3x3 maximum pooling with stride 2 runs in parallel."""
    channels = shape[0]
    for i, steps in enumerate(branches):
        inner = _branch(build, shape, f"{name}.{i}", steps[:-1])
        last = build.conv(inner, f"{name}.{i}.last", *steps[-1], stride=2)
        channels += last[0]
    _, high, wide = build.pool(shape, f"{name}.pool", 3, 2)
    build.end_stage(name, (channels, high, wide))
    return channels, high, wide


def _expanded(build: Builder, shape: Shape, name: str) -> Shape:
    """Append one of the last two inception blocks and return the shape of the concatenated outputs.
    Two of the branches each end in two parallel convolutions of the same input, 1x3 and 3x1."""
    _branch(build, shape, f"{name}.0", [(320, 1)])
    for i, steps in enumerate([[(384, 1)], [(448, 1), (384, 3)]], 1):
        inner = _branch(build, shape, f"{name}.{i}", steps)
        _branch(build, inner, f"{name}.{i}.wide", [(384, (1, 3))])
        _branch(build, inner, f"{name}.{i}.high", [(384, (3, 1))])
    _branch(build, build.pool(shape, f"{name}.pool", 3, 1, 1), f"{name}.3", [(192, 1)])
    out = 320 + 4 * 384 + 192, shape[1], shape[2]
    build.end_stage(name, out)
    return out


def inceptionv3() -> Network:
    """Return the layer table of InceptionV3 without the auxiliary classifier, for images of 299 x
    299 pixels."""
    shape: Shape = (3, 299, 299)
    build = Builder("inceptionv3", "InceptionV3", shape)
    shape = build.conv(shape, "conv1", 32, 3, stride=2)
    shape = build.conv(shape, "conv2", 32, 3)
    shape = build.conv(shape, "conv3", 64, 3, pad=1)
    shape = build.pool(shape, "pool1", 3, 2)
    build.end_stage("stem1", shape)
    shape = build.conv(shape, "conv4", 80, 1)
    shape = build.conv(shape, "conv5", 192, 3)
    shape = build.pool(shape, "pool2", 3, 2)
    build.end_stage("stem2", shape)
    for name, pooled in (("mixed1", 32), ("mixed2", 64), ("mixed3", 64)):
        branches: list[list[Step]] = [
            [(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)], [(pooled, 1)],
        ]  # fmt: skip
        shape = _mixed(build, shape, name, branches)
    shape = _reduction(build, shape, "mixed4", [[(384, 3)], [(64, 1), (96, 3), (96, 3)]])
    for name, width in (("mixed5", 128), ("mixed6", 160), ("mixed7", 160), ("mixed8", 192)):
        wide, high = (1, 7), (7, 1)
        branches = [
            [(192, 1)],
            [(width, 1), (width, wide), (192, high)],
            [(width, 1), (width, high), (width, wide), (width, high), (192, wide)],
            [(192, 1)],
        ]
        shape = _mixed(build, shape, name, branches)
    shape = _reduction(
        build,
        shape,
        "mixed9",
        [[(192, 1), (320, 3)], [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)]],
    )
    for name in ("mixed10", "mixed11"):
        shape = _expanded(build, shape, name)
    values = build.average(shape, "avgpool")
    build.end_stage("avgpool", values)
    build.end_stage("fc", build.dense(values, "fc", CLASSES))
    return build.network()


def vit_b_16() -> Network:
    """Return the layer table of ViT-B/16 for images of 224 x 224 pixels: 196 patches and a class
    token."""
    values, rows = 768, 197
    shape: Shape = (3, 224, 224)
    build = Builder("vit-b-16", "ViT-B/16", shape)
    build.conv(shape, "patches", values, 16, stride=16, bias=True)
    build.add_params("class_token", values, rows * values)
    build.add_params("positions", rows * values, rows * values)
    build.end_stage("patches", rows * values)
    for block in range(12):
        prefix = f"encoder{block + 1}"
        build.normalize(rows, values, f"{prefix}.norm1")
        build.dense(values, f"{prefix}.qkv", 3 * values, rows)
        build.attention(rows, values, f"{prefix}.attention")
        build.dense(values, f"{prefix}.projection", values, rows)
        build.normalize(rows, values, f"{prefix}.norm2")
        build.dense(values, f"{prefix}.mlp1", 4 * values, rows)
        build.dense(4 * values, f"{prefix}.mlp2", values, rows)
        build.end_stage(prefix, rows * values)
    build.normalize(rows, values, "norm")
    build.end_stage("class_token", values)
    build.end_stage("head", build.dense(values, "head", CLASSES))
    return build.network()


NETWORKS: dict[str, Callable[[], Network]] = {
    "resnet50": resnet50,
    "inceptionv3": inceptionv3,
    "resnext101-32x4d": resnext101,
    "vit-b-16": vit_b_16,
}
"""Functions that return the layer table of a network, by name of the network."""


@cache
def network(name: str) -> Network:
    """Return the layer table of the network ``name``. Raises InputError if the name is unknown."""
    if name not in NETWORKS:
        raise InputError(f"network {name!r}: unknown; {known_names(name, NETWORKS)}")
    return NETWORKS[name]()
