"""Layer table of a torch model, measured by running the model once with hooks.

Owns the stages of any torch model and the check that the model can be cut after each of them. Does
not own the tables of known architectures (architectures.py). torch is imported when a model is
read.
Source: torch.utils.flop_counter counts two operations per multiply-accumulate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ondie.emu.ndpipe.layers import Layer, Network, Shape, Stage
from ondie.emu.units import InputError


def from_torch(model: Any, shape: Shape, title: str) -> Network:
    """Return the layer table of a torch model; each of its direct children is a stage.

    ``model``: torch.nn.Module whose children run one after another, each exactly once; the last
    child is the head. ``shape``: channels, height and width of an input. Raises InputError if the
    model does not run with such an input, if a child does not run exactly once or does not return a
    tensor, or if data bypasses a child other than the head. The network cannot be cut after a
    bypassed child.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise InputError(f"{title}: is a {type(model).__name__}; must be a torch.nn.Module")
    children = dict(model.named_children())
    if len(children) < 2:
        raise InputError(
            f"{title}: has {len(children)} child modules; a cut needs at least two, such as those "
            "of torch.nn.Sequential"
        )
    was_training, flags = model.training, [value.requires_grad for value in model.parameters()]
    model.eval().requires_grad_(False)
    try:
        stages = _measured(model, children, shape, title)
        for stage in stages[:-1]:
            if _bypassed(model, children[stage.name], shape):
                raise InputError(
                    f"{title}: data bypasses {stage.name}, so no cut is possible after it; "
                    "combine all child modules from the start to the end of the bypass into one"
                )
    finally:
        model.train(was_training)
        for value, flag in zip(model.parameters(), flags, strict=True):
            value.requires_grad_(flag)
    layers = tuple(
        Layer(stage.name, stage.name, stage.params, stage.macs, stage.outputs) for stage in stages
    )
    return Network(title, title, math.prod(shape), layers, tuple(stages))


INPUTS = 3
"""Number of random inputs with which :func:`_values_bypass` runs a model."""


def _run(model: Any, shape: Shape, title: str = "", given: Any = None) -> Any:
    """Return the output of ``model`` for ``given``, or for one input of zeros if ``given`` is None.
    The input requires a gradient. Raises InputError, whose message begins with ``title``, if the
    model fails or does not return a tensor."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    given = torch.zeros(1, *shape) if given is None else given
    given.requires_grad_(True)
    try:
        with (
            sdpa_kernel(SDPBackend.MATH),
            torch.enable_grad(),
        ):  # the fused kernels are not counted on every processor
            found = model(given)
        if not isinstance(found, torch.Tensor):
            raise InputError(f"{title}: returns {type(found).__name__}; must return a tensor")
        return found
    except InputError:
        raise
    except Exception as error:  # the code is the user's
        text = " ".join(str(error).split())
        raise InputError(f"{title}: does not run with an input of {shape}: {text}") from error


def _measured(model: Any, children: dict[str, Any], shape: Shape, title: str) -> list[Stage]:
    """Run the model once and return its stages in order of execution. Raises InputError as
    :func:`from_torch` does."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    stages: list[Stage] = []
    started: dict[str, int] = {}

    def begins(name: str) -> Callable[..., None]:
        def hook(module: Any, given: Any) -> None:
            if name in started:
                raise InputError(f"{title}: {name} runs more than once; wrap its calls in a module")
            started[name] = counter.get_total_flops()

        return hook

    def ends(name: str, params: int) -> Callable[..., None]:
        def hook(module: Any, given: Any, output: Any) -> None:
            if not isinstance(output, torch.Tensor):
                raise InputError(
                    f"{title}: {name} returns {type(output).__name__}; must return a tensor"
                )
            macs = (counter.get_total_flops() - started[name]) // 2
            stages.append(Stage(name, params, macs, output.numel()))

        return hook

    handles = []
    for name, child in children.items():
        params = sum(value.numel() for value in child.parameters())
        handles += [
            child.register_forward_pre_hook(begins(name)),
            child.register_forward_hook(ends(name, params)),
        ]
    try:
        with counter:
            _run(model, shape, title)
    finally:
        for handle in handles:
            handle.remove()
    if idle := [name for name in children if name not in started]:
        raise InputError(f"{title}: child modules that never run: {', '.join(idle)}; remove them")
    counted, total = sum(stage.macs for stage in stages), counter.get_total_flops() // 2
    if counted != total:
        raise InputError(
            f"{title}: {total - counted} of {total} multiply-accumulates are outside its child "
            "modules; move them into a child module"
        )
    return stages


def _bypassed(model: Any, child: Any, shape: Shape) -> bool:
    """Return True if data reaches the output of ``model`` on a path that bypasses ``child``.

    Either of two tests shows this: a gradient reaches the input although the output of ``child`` is
    detached, or the output depends on the input although the output of ``child`` is held constant.
    The second test also finds data that bypasses ``child`` inside torch.no_grad().
    """
    handle = child.register_forward_hook(lambda module, given, output: output.detach())
    try:
        if _run(model, shape).requires_grad:
            return True
    finally:
        handle.remove()
    return _values_bypass(model, child, shape)


def _values_bypass(model: Any, child: Any, shape: Shape) -> bool:
    """Return True if the model's output changes with its input although ``child`` always returns
    its output for the first input. All runs draw the same random numbers."""
    import torch

    kept: list[Any] = []

    def hook(module: Any, given: Any, output: Any) -> Any:
        if not kept:
            kept.append(output.detach().clone())
        return kept[0].clone()

    handle = child.register_forward_hook(hook)
    try:
        found = []
        for seed in range(INPUTS):
            values = torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                found.append(_run(model, shape, given=values).detach())
    finally:
        handle.remove()
    return not all(torch.equal(found[0], each) for each in found[1:])
