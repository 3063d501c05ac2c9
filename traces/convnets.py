"""Convolutional networks as lists of their parameter tensors, with the MACs of each tensor.

This module owns MobileNetV2, InceptionV3, SqueezeNet 1.0, ShuffleNet 2x and NASNet-A mobile, in
forward order. It does not own timing, batch sizes or optimizers (synth.py). Buffers are not
parameters.
Source: Sandler et al. 2018, Szegedy et al. 2015, Iandola et al. 2016, Zhang et al. 2018, Zoph et
    al. 2017. The counts match torchvision (the first three networks), the paper (ShuffleNet: 524 M
    MACs) and Keras applications (NASNet, whose cells are built as in Keras).
"""

from __future__ import annotations

from ondie.traces.architectures import Use


class Net:
    """A network under construction: its layers add their parameter tensors to the list `uses`.

    The caller keeps track of channels and image sizes.
    """

    def __init__(self) -> None:
        self.uses: list[Use] = []

    def conv(
        self,
        name: str,
        cin: int,
        cout: int,
        size: int,
        kernel: tuple[int, int] = (1, 1),
        groups: int = 1,
        bias: bool = False,
        norm: bool = True,
    ) -> int:
        """Add a convolution with output images of size x size and, if `norm` is True, its batch
        normalization.

        Returns cout, the number of output channels.
        """
        shape = (cout, cin // groups, *kernel)
        macs = cout * (cin // groups) * kernel[0] * kernel[1] * size * size
        self.uses.append(Use(f"{name}.weight", shape, macs))
        if bias:
            self.uses.append(Use(f"{name}.bias", (cout,), 0))
        if norm:
            self.norm(f"{name}.bn", cout)
        return cout

    def norm(self, name: str, width: int) -> None:
        """Add the scale and the shift of a batch normalization."""
        self.uses += [Use(f"{name}.weight", (width,), 0), Use(f"{name}.bias", (width,), 0)]

    def dense(self, name: str, inputs: int, outputs: int) -> None:
        """Add a fully connected layer."""
        self.uses.append(Use(f"{name}.weight", (outputs, inputs), outputs * inputs))
        self.uses.append(Use(f"{name}.bias", (outputs,), 0))


def mobilenetv2(classes: int = 1000) -> list[Use]:
    """Return the tensors of MobileNetV2 with width 1.0 for images of 224 x 224 pixels."""
    net, size = Net(), 112
    channels = net.conv("features.0", 3, 32, size, (3, 3))
    number = 1
    for expand, out, repeat, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for i in range(repeat):
            name, wide = f"features.{number}", channels * expand
            if expand > 1:
                net.conv(f"{name}.expand", channels, wide, size)
            size //= stride if i == 0 else 1
            net.conv(f"{name}.depthwise", wide, wide, size, (3, 3), groups=wide)
            channels = net.conv(f"{name}.project", wide, out, size)
            number += 1
    net.conv(f"features.{number}", channels, 1280, size)
    net.dense("classifier", 1280, classes)
    return net.uses


def squeezenet(classes: int = 1000) -> list[Use]:
    """Return the tensors of SqueezeNet 1.0 for images of 224 x 224 pixels.

    The 1.25 M parameters match the number in the STANNIS paper (DAC 2020).
    """
    net = Net()
    net.conv("features.0", 3, 96, 109, (7, 7), bias=True, norm=False)
    channels = 96
    fires = (
        (16, 64, 54),
        (16, 64, 54),
        (32, 128, 54),
        (32, 128, 27),
        (48, 192, 27),
        (48, 192, 27),
        (64, 256, 27),
        (64, 256, 13),
    )
    for i, (squeeze, expand, size) in enumerate(fires):
        name = f"fire{i + 2}"
        net.conv(f"{name}.squeeze", channels, squeeze, size, bias=True, norm=False)
        net.conv(f"{name}.expand1x1", squeeze, expand, size, bias=True, norm=False)
        net.conv(f"{name}.expand3x3", squeeze, expand, size, (3, 3), bias=True, norm=False)
        channels = 2 * expand
    net.conv("classifier", channels, classes, 13, bias=True, norm=False)
    return net.uses


def shufflenet(classes: int = 1000) -> list[Use]:
    """Return the tensors of ShuffleNet 2x with 3 groups for images of 224 x 224 pixels.

    The total of the MACs is 524 M, as printed in the paper.
    """
    net, groups = Net(), 3
    channels, size = net.conv("conv1", 3, 48, 112, (3, 3)), 56
    for stage, (out, units) in enumerate(((480, 4), (960, 8), (1920, 4)), 2):
        for unit in range(units):
            name, middle = f"stage{stage}.{unit}", out // 4
            # the first layer has too few channels for groups
            first = stage == 2 and not unit
            net.conv(f"{name}.reduce", channels, middle, size, groups=1 if first else groups)
            size //= 1 if unit else 2
            net.conv(f"{name}.depthwise", middle, middle, size, (3, 3), groups=middle)
            # a unit with stride 2 appends its output to its pooled input
            net.conv(f"{name}.expand", middle, out if unit else out - channels, size, groups=groups)
            channels = out
    net.dense("fc", channels, classes)
    return net.uses


def inceptionv3(classes: int = 1000) -> list[Use]:
    """Return the tensors of InceptionV3 for images of 299 x 299 pixels, without the auxiliary
    classifier."""
    net = Net()

    def tower(name: str, channels: int, *layers: tuple[int, tuple[int, int], int]) -> int:
        for i, (out, kernel, size) in enumerate(layers):
            channels = net.conv(f"{name}_{i + 1}", channels, out, size, kernel)
        return channels

    one, three, five, row, column = (1, 1), (3, 3), (5, 5), (1, 7), (7, 1)
    channels = tower(
        "Stem",
        3,
        (32, three, 149),
        (32, three, 147),
        (64, three, 147),
        (80, one, 73),
        (192, three, 71),
    )
    for name, pool in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        channels = sum(
            [
                tower(f"{name}.1x1", channels, (64, one, 35)),
                tower(f"{name}.5x5", channels, (48, one, 35), (64, five, 35)),
                tower(f"{name}.3x3dbl", channels, (64, one, 35), (96, three, 35), (96, three, 35)),
                tower(f"{name}.pool", channels, (pool, one, 35)),
            ]
        )
    channels += tower("Mixed_6a.3x3", channels, (384, three, 17)) + tower(
        "Mixed_6a.3x3dbl", channels, (64, one, 35), (96, three, 35), (96, three, 17)
    )
    for name, c in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        channels = sum(
            [
                tower(f"{name}.1x1", channels, (192, one, 17)),
                tower(f"{name}.7x7", channels, (c, one, 17), (c, row, 17), (192, column, 17)),
                tower(
                    f"{name}.7x7dbl",
                    channels,
                    (c, one, 17),
                    (c, column, 17),
                    (c, row, 17),
                    (c, column, 17),
                    (192, row, 17),
                ),
                tower(f"{name}.pool", channels, (192, one, 17)),
            ]
        )
    channels += tower("Mixed_7a.3x3", channels, (192, one, 17), (320, three, 8)) + tower(
        "Mixed_7a.7x7x3",
        channels,
        (192, one, 17),
        (192, row, 17),
        (192, column, 17),
        (192, three, 8),
    )
    for name in ("Mixed_7b", "Mixed_7c"):
        wide = tower(f"{name}.1x1", channels, (320, one, 8))
        middle = tower(f"{name}.3x3", channels, (384, one, 8))
        double = tower(f"{name}.3x3dbl", channels, (448, one, 8), (384, three, 8))
        for part, inputs in (("3x3", middle), ("3x3dbl", double)):
            wide += net.conv(f"{name}.{part}_a", inputs, 384, 8, (1, 3))
            wide += net.conv(f"{name}.{part}_b", inputs, 384, 8, (3, 1))
        channels = wide + tower(f"{name}.pool", channels, (192, one, 8))
    net.dense("fc", channels, classes)
    return net.uses


def nasnet_mobile(classes: int = 1000) -> list[Use]:
    """Return the tensors of NASNet-A (4 @ 1056) for images of 224 x 224 pixels, built cell by
    cell."""
    net = Net()

    def separable(name: str, cin: int, filters: int, size: int, kernel: int) -> None:
        for half, channels in (("1", cin), ("2", filters)):
            net.conv(
                f"{name}.depthwise{half}",
                channels,
                channels,
                size,
                (kernel, kernel),
                groups=channels,
                norm=False,
            )
            net.conv(f"{name}.pointwise{half}", channels, filters, size)

    def adjust(name: str, before: tuple[int, int], now: tuple[int, int], filters: int) -> int:
        """Add the layers that adapt the second-to-last output to the size and width of this cell.

        An output is given as (channels, size).
        """
        if before[1] != now[1]:
            net.conv(f"{name}.adjust.1", before[0], filters // 2, now[1], norm=False)
            net.conv(f"{name}.adjust.2", before[0], filters // 2, now[1], norm=False)
            net.norm(f"{name}.adjust.bn", filters)
        elif before[0] != filters:
            net.conv(f"{name}.adjust", before[0], filters, now[1])
        return filters

    def normal(name: str, now: tuple[int, int], before: tuple[int, int], filters: int) -> int:
        size, p = now[1], adjust(name, before, now, filters)
        net.conv(f"{name}.begin", now[0], filters, size)
        separable(f"{name}.left1", filters, filters, size, 5)
        separable(f"{name}.right1", p, filters, size, 3)
        separable(f"{name}.left2", p, filters, size, 5)
        separable(f"{name}.right2", p, filters, size, 3)
        separable(f"{name}.left5", filters, filters, size, 3)
        return p + 5 * filters

    def reduce(
        name: str, now: tuple[int, int], before: tuple[int, int] | None, filters: int
    ) -> tuple[int, int]:
        size = (now[1] + 1) // 2
        # the first cell has no predecessor and uses its own input without adjustment
        p = now[0] if before is None else adjust(name, before, now, filters)
        net.conv(f"{name}.begin", now[0], filters, now[1])
        separable(f"{name}.left1", filters, filters, size, 5)
        separable(f"{name}.right1", p, filters, size, 7)
        separable(f"{name}.right2", p, filters, size, 7)
        separable(f"{name}.right3", p, filters, size, 5)
        separable(f"{name}.left4", filters, filters, size, 3)
        return 4 * filters, size

    filters = 1056 // 24
    stem = (net.conv("stem", 3, 32, 111, (3, 3)), 111)
    first = reduce("stem_1", stem, None, filters // 4)
    now, before = reduce("stem_2", first, stem, filters // 2), first
    for stage in range(3):
        if stage:
            filters *= 2
            # Keras continues with the cell before the reduction, not with its predecessor
            now, before = reduce(f"reduce_{4 * stage}", now, before, filters), now
        for i in range(4):
            out = normal(f"cell_{4 * stage + i}", now, before, filters)
            now, before = (out, now[1]), now
    net.dense("predictions", now[0], classes)
    return net.uses
