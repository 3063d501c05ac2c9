"""Layer tables: parameters, multiply-accumulates and outputs of each layer of a network.

Owns the records of layers, stages and networks, and the arithmetic of convolutions, dense layers
and attention. Does not own the definitions of the networks (architectures.py) or the choice of the
cut (partition.py).
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
"""Shape of a feature map of one sample: channels, height, width."""
VALUE_BYTES = 4
"""Size of an FP32 parameter, bytes."""


@dataclass(frozen=True)
class Layer:
    """One operation of a network, with its counts per sample.

    ``stage``: name of the stage that contains the layer. ``params``: number of parameters,
    including those of a batch normalization that follows a convolution. ``macs``: number of
    multiply-accumulates. ``outputs``: number of elements of the output.
    """

    name: str
    stage: str
    params: int
    macs: int
    outputs: int


@dataclass(frozen=True)
class Stage:
    """Group of layers after which a network can be cut, because a single tensor connects it to the
    next layers.

    ``params`` and ``macs``: sums over the layers of the stage. ``outputs``: number of elements of
    the output tensor of the last layer, per sample.
    """

    name: str
    params: int
    macs: int
    outputs: int


@dataclass(frozen=True)
class Network:
    """Layer table of a network.

    ``inputs``: number of elements of one input. ``layers``: layers in order of execution.
    ``stages``: stages in order of execution; the last stage is the head, which fine-tuning trains,
    and all other stages are frozen.
    """

    name: str
    title: str
    inputs: int
    layers: tuple[Layer, ...]
    stages: tuple[Stage, ...]

    @property
    def params(self) -> int:
        """Number of parameters of the network."""
        return sum(layer.params for layer in self.layers)

    @property
    def macs(self) -> int:
        """Number of multiply-accumulates of the forward pass of one sample."""
        return sum(layer.macs for layer in self.layers)

    @property
    def head(self) -> Stage:
        """Last stage of the network, which fine-tuning trains."""
        return self.stages[-1]

    @property
    def model_bytes(self) -> int:
        """Size of all parameters of the network, bytes."""
        return VALUE_BYTES * self.params

    @property
    def head_bytes(self) -> int:
        """Size of the parameters of the head, bytes."""
        return VALUE_BYTES * self.head.params

    @cached_property
    def cuts(self) -> tuple[str, ...]:
        """Names of the positions where the network can be cut: before the first stage (INPUT), and
        after each frozen stage."""
        return (INPUT, *(stage.name for stage in self.stages[:-1]))

    def cut_index(self, cut: str) -> int:
        """Return the number of stages before a cut. Raises InputError if ``cut`` is neither INPUT
        nor the name of a frozen stage."""
        if cut not in self.cuts:
            where = f"{self.title}, cut {cut!r}"
            if cut == self.head.name:
                raise InputError(
                    f"{where}: this layer is trained, and stores run only frozen layers; use "
                    f"{self.cuts[-1]} or an earlier cut"
                )
            raise InputError(f"{where}: the network has no such cut; {known_names(cut, self.cuts)}")
        return self.cuts.index(cut)

    def crossing(self, cut: str) -> int:
        """Return the number of elements per sample of the tensor that crosses cut ``cut``."""
        at = self.cut_index(cut)
        return self.stages[at - 1].outputs if at else self.inputs

    def macs_before(self, cut: str) -> int:
        """Return the multiply-accumulates per sample of the stages before cut ``cut``."""
        return sum(stage.macs for stage in self.stages[: self.cut_index(cut)])


INPUT = "input"
"""Name of the cut before the first layer; with this cut, storage servers send preprocessed
inputs."""


class Builder:
    """Builder of a layer table, which grows while a network is defined. The methods for convolution
    and pooling take the shape of the input and return the shape of the output, both of one sample.
    The caller passes a returned shape to the next call, so that several branches can start from the
    same shape."""

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
        """Append a convolution and return the shape of its output. Without ``bias``, the
        convolution is followed by a batch normalization with two parameters per channel."""
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
        """Append a pooling layer and return the shape of its output."""
        high, wide = ((edge + 2 * pad - kernel) // stride + 1 for edge in shape[1:])
        self._append(name, 0, 0, shape[0] * high * wide)
        return shape[0], high, wide

    def average(self, shape: Shape, name: str) -> int:
        """Append an average over all pixels and return the number of channels."""
        self._append(name, 0, 0, shape[0])
        return shape[0]

    def dense(self, values: int, name: str, outputs: int, rows: int = 1) -> int:
        """Append a dense layer with bias, and return ``outputs``. The layer converts each of
        ``rows`` vectors of ``values`` elements to a vector of ``outputs`` elements."""
        weights = values * outputs
        self._append(name, weights + outputs, weights * rows, outputs * rows)
        return outputs

    def attention(self, rows: int, values: int, name: str) -> None:
        """Append the two matrix products of self-attention over ``rows`` tokens of ``values``
        elements."""
        self._append(name, 0, 2 * rows * rows * values, rows * values)

    def normalize(self, rows: int, values: int, name: str) -> None:
        """Append a layer normalization of ``rows`` tokens of ``values`` elements."""
        self._append(name, 2 * values, 0, rows * values)

    def add_params(self, name: str, params: int, outputs: int) -> None:
        """Append parameters that are added or concatenated to a tensor, such as position
        embeddings."""
        self._append(name, params, 0, outputs)

    def end_stage(self, name: str, outputs: int | Shape) -> None:
        """End a stage that consists of all layers since the end of the previous stage. ``outputs``:
        shape or number of elements of the tensor that crosses a cut after this stage."""
        count = math.prod(outputs) if isinstance(outputs, tuple) else outputs
        layers, self._open = self._open, []
        self.layers += [replace(layer, stage=name) for layer in layers]
        self.stages.append(Stage(name, *_sums(layers), count))

    def network(self) -> Network:
        """Return the layer table of all stages that :meth:`end_stage` has ended."""
        return Network(self.name, self.title, self.inputs, tuple(self.layers), tuple(self.stages))

    def _append(self, name: str, params: int, macs: int, outputs: int) -> None:
        self._open.append(Layer(name, "", params, macs, outputs))


def _sums(layers: Iterable[Layer]) -> tuple[int, int]:
    """Return the sums of the parameters and of the multiply-accumulates of ``layers``."""
    each = list(layers)
    return sum(layer.params for layer in each), sum(layer.macs for layer in each)
