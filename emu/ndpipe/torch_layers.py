"""Layer table of a torch model, found by running it once with hooks.

Owns the stages of any torch model and the check that it can be cut behind each. Does not own the
tables of known architectures (architectures.py). torch is imported when a model is read.
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

    ``model``: torch.nn.Module whose children run one after the other, each once; the last one is
    the head. ``shape``: channels, height and width of an input. Raises InputError if the model does
    not run with such an input, if a child runs never or several times or returns no tensor, or if
    data bypass a child other than the head, so that there is no cut behind it.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise InputError(f"{title}: is {type(model).__name__}, must be a torch.nn.Module")
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
                    f"{title}: data bypass {stage.name}, so there is no cut behind it; put these "
                    "modules into one"
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
"""Number of inputs for which the output must not change while the output of a child does not."""


def _run(model: Any, shape: Shape, title: str = "", given: Any = None) -> Any:
    """Return the output for ``given``, or for one input of zeros, which requires a gradient. Raises
    InputError if the model fails and there is a ``title``."""
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
    """Return the stages in order of execution."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    stages: list[Stage] = []
    started: dict[str, int] = {}

    def begins(name: str) -> Callable[..., None]:
        def hook(module: Any, given: Any) -> None:
            if name in started:
                raise InputError(f"{title}: {name} runs more than once; put it into one module")
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
        raise InputError(f"{title}: {', '.join(idle)} never run; remove what is not used")
    counted, total = sum(stage.macs for stage in stages), counter.get_total_flops() // 2
    if counted != total:
        raise InputError(
            f"{title}: {total - counted} of {total} multiply-accumulates are outside its child "
            "modules; move them into one"
        )
    return stages


def _bypassed(model: Any, child: Any, shape: Shape) -> bool:
    """Return True if the output depends on the input otherwise than through ``child``.

    A gradient reaches the input around the child, or the output changes with the input although
    the child's output is always the same; the latter also finds data that bypass it inside
    torch.no_grad().
    """
    handle = child.register_forward_hook(lambda module, given, output: output.detach())
    try:
        if _run(model, shape).requires_grad:
            return True
    finally:
        handle.remove()
    return _values_bypass(model, child, shape)


def _values_bypass(model: Any, child: Any, shape: Shape) -> bool:
    """Return True if the output for another input differs although ``child`` returns what it
    returned for the first one. Both runs draw the same random numbers."""
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
