"""Layer tables: parameters, multiply-accumulates and outputs of each layer of a network.

Owns the records of layers, stages and networks, and the arithmetic of convolutions, dense layers
and attention. Does not own the networks (architectures.py) or where they are cut (partition.py).
Source: the definitions of the operations; MACs count multiplications of matrix products and
convolutions, as in the tables of torchvision and timm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from ondie.emu.units import InputError, known_names

Shape = tuple[int, int, int]
"""Channels, height and width of a feature map of one sample."""
VALUE_BYTES = 4
"""Bytes of a parameter (FP32)."""


@dataclass(frozen=True)
class Layer:
    """One operation of a network, per sample.

    ``stage``: name of the stage that the layer belongs to. ``params``: parameters, those of a
    batch normalization behind a convolution included. ``macs``: multiply-accumulates.
    ``outputs``: elements of the output.
    """

    name: str
    stage: str
    params: int
    macs: int
    outputs: int


@dataclass(frozen=True)
class Stage:
    """Layers after which a network can be cut, because a single tensor leads to the next layers.

    ``params`` and ``macs``: sums over the layers of the stage. ``outputs``: elements of the tensor
    behind the last layer, per sample.
    """

    name: str
    params: int
    macs: int
    outputs: int


@dataclass(frozen=True)
class Network:
    """Layer table of a network.

    ``inputs``: elements of one input. ``layers``: in order of execution. ``stages``: in the same
    order; the last one is the head, which fine-tuning trains, and all others are frozen.
    """

    name: str
    title: str
    inputs: int
    layers: tuple[Layer, ...]
    stages: tuple[Stage, ...]

    @property
    def params(self) -> int:
        """Parameters of the network."""
        return sum(layer.params for layer in self.layers)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the forward pass of one sample."""
        return sum(layer.macs for layer in self.layers)

    @property
    def head(self) -> Stage:
        """The stage that fine-tuning trains."""
        return self.stages[-1]

    @property
    def model_bytes(self) -> int:
        """Size of all parameters, bytes."""
        return VALUE_BYTES * self.params

    @property
    def head_bytes(self) -> int:
        """Size of the parameters of the head, bytes."""
        return VALUE_BYTES * self.head.params

    @cached_property
    def cuts(self) -> tuple[str, ...]:
        """Names of the positions where the network can be cut: before the first stage (INPUT), and
        behind each frozen stage."""
        return (INPUT, *(stage.name for stage in self.stages[:-1]))

    def cut_index(self, cut: str) -> int:
        """Return the number of stages before a cut. Raises InputError if ``cut`` is not a frozen
        stage of the network."""
        if cut not in self.cuts:
            where = f"{self.title}, cut {cut!r}"
            if cut == self.head.name:
                raise InputError(
                    f"{where}: this layer is trained, and stores run only frozen layers; use "
                    f"{self.cuts[-1]} or an earlier one"
                )
            raise InputError(
                f"{where}: there is no such layer to cut behind; {known_names(cut, self.cuts)}"
            )
        return self.cuts.index(cut)

    def crossing(self, cut: str) -> int:
        """Return the elements that cross a cut per sample."""
        at = self.cut_index(cut)
        return self.stages[at - 1].outputs if at else self.inputs

    def macs_before(self, cut: str) -> int:
        """Return the multiply-accumulates per sample before a cut."""
        return sum(stage.macs for stage in self.stages[: self.cut_index(cut)])


INPUT = "input"
"""Name of the cut before the first layer: stores send preprocessed inputs."""


class Builder:
    """List of layers that grows while a network is defined. Shapes of one sample are passed from
    call to call, so that branches can start from the same shape."""

    def __init__(self, name: str, title: str, shape: Shape) -> None:
        self.name, self.title, self.inputs = name, title, math.prod(shape)
        self.layers: list[Layer] = []
        self.stages: list[Stage] = []
        self._open: list[Layer] = []

    def conv(
        self,
        shape: Shape,
        name: str,
        channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        pad: int | tuple[int, int] = 0,
        groups: int = 1,
        bias: bool = False,
    ) -> Shape:
        """Append a convolution; return the shape of its output. Without ``bias``, batch
        normalization follows, with two parameters per channel."""
        high, wide = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        over, beside = pad if isinstance(pad, tuple) else (pad, pad)
        out = (
            channels,
            (shape[1] + 2 * over - high) // stride + 1,
            (shape[2] + 2 * beside - wide) // stride + 1,
        )
        weights = shape[0] // groups * high * wide * channels
        more = channels if bias else 2 * channels
        self._append(name, weights + more, weights * out[1] * out[2], math.prod(out))
        return out

    def pool(self, shape: Shape, name: str, kernel: int, stride: int, pad: int = 0) -> Shape:
        """Append a pooling layer; return the shape of its output."""
        high, wide = ((edge + 2 * pad - kernel) // stride + 1 for edge in shape[1:])
        self._append(name, 0, 0, shape[0] * high * wide)
        return shape[0], high, wide

    def average(self, shape: Shape, name: str) -> int:
        """Append the average over all pixels; return the number of channels."""
        self._append(name, 0, 0, shape[0])
        return shape[0]

    def dense(self, values: int, name: str, outputs: int, rows: int = 1) -> int:
        """Append a dense layer with bias, applied to ``rows`` vectors; return its outputs per
        vector."""
        weights = values * outputs
        self._append(name, weights + outputs, weights * rows, outputs * rows)
        return outputs

    def attention(self, rows: int, values: int, name: str) -> None:
        """Append the two matrix products of self-attention of ``rows`` tokens."""
        self._append(name, 0, 2 * rows * rows * values, rows * values)

    def normalize(self, rows: int, values: int, name: str) -> None:
        """Append a layer normalization of ``rows`` tokens."""
        self._append(name, 2 * values, 0, rows * values)

    def add_params(self, name: str, params: int, outputs: int) -> None:
        """Append parameters that are added or concatenated, such as positions."""
        self._append(name, params, 0, outputs)

    def end_stage(self, name: str, outputs: int | Shape) -> None:
        """End a stage with all layers since the last end; ``outputs``: number of elements that
        cross a cut here."""
        count = math.prod(outputs) if isinstance(outputs, tuple) else outputs
        layers, self._open = self._open, []
        self.layers += [replace(layer, stage=name) for layer in layers]
        self.stages.append(Stage(name, *_sums(layers), count))

    def network(self) -> Network:
        """Return the table of all stages that have ended."""
        return Network(self.name, self.title, self.inputs, tuple(self.layers), tuple(self.stages))

    def _append(self, name: str, params: int, macs: int, outputs: int) -> None:
        self._open.append(Layer(name, "", params, macs, outputs))


def _sums(layers: Iterable[Layer]) -> tuple[int, int]:
    """Return the parameters and the multiply-accumulates of ``layers``."""
    each = list(layers)
    return sum(layer.params for layer in each), sum(layer.macs for layer in each)
