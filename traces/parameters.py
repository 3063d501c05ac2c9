"""Names of an optimizer's parameters, and the 16-bit model of master weights.

This module owns the search for modules among live objects, parameter names, and the search for the
16-bit model of FP32 master weights. The training script needs no change. A parameter that no module
holds is named by group and number.
Source: torch.nn.Module.named_parameters; masters as in Micikevicius et al. 2018 (mixed precision).
"""

from __future__ import annotations

import gc
from typing import Any


def roots(module_type: type) -> list[Any]:
    """Return the live objects of class ``module_type`` (torch modules) that are not a child of
    another live module."""
    modules = live(module_type)
    children = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in children]


def live(kind: type) -> list[Any]:
    """Return all live objects of a class, including its subclasses.

    The function checks the result of type(). isinstance() would make lazy proxies load their
    objects.
    """
    wanted: dict[type, bool] = {}
    found = []
    for candidate in gc.get_objects():
        own = type(candidate)
        if own not in wanted:
            wanted[own] = issubclass(own, kind)
        if wanted[own]:
            found.append(candidate)
    return found


def flat_parameters(optimizer: Any) -> list[tuple[int, Any]]:
    """Return the parameters of an optimizer as (group, parameter), in the optimizer's order."""
    return [
        (number, parameter)
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    ]


def owner_and_names(optimizer: Any, modules: list[Any]) -> tuple[Any | None, list[str]]:
    """Return (module that holds most of the optimizer's parameters, names of all these parameters).

    The names are unique. The module is None if no module holds any of the parameters.
    """
    parameters = [parameter for _, parameter in flat_parameters(optimizer)]
    wanted = {id(parameter) for parameter in parameters}
    given: dict[int, str] = {}
    for group in optimizer.param_groups:
        for parameter, name in zip(group["params"], group.get("param_names", ()), strict=False):
            given[id(parameter)] = name
    owned = []
    for module in modules:
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        held = len(wanted & names.keys())
        if held:
            owned.append((held, -len(names), module, names))
    owned.sort(key=lambda entry: entry[:2], reverse=True)
    for _, _, module, names in owned:
        missing = wanted - given.keys()
        prefix = "" if module is owned[0][2] else f"{type(module).__name__}."
        given |= {key: prefix + name for key, name in names.items() if key in missing}
    out: list[str] = []
    for number, (group, parameter) in enumerate(flat_parameters(optimizer)):
        name = given.get(id(parameter), f"group{group}.{number}")
        out.append(name if name not in out else f"{name}~{number}")
    return (owned[0][2] if owned else None), out


def twins(optimizer: Any, modules: list[Any]) -> list[tuple[Any, list[tuple[str, Any]]]]:
    """Return the candidates for the 16-bit model of an optimizer's FP32 master weights: the models
    in ``modules`` whose 16-bit parameters have the same shapes in the same order.

    Each entry has a model and its named parameters in order. Of several candidates, the model in
    training is the one whose parameters receive gradients. The list is empty if a parameter of the
    optimizer is not float32.
    """
    masters = [parameter for _, parameter in flat_parameters(optimizer)]
    if any(str(parameter.dtype) != "torch.float32" for parameter in masters):
        return []
    shapes = [tuple(parameter.shape) for parameter in masters]
    found = []
    for module in modules:
        named = list(module.named_parameters())
        kinds = {str(parameter.dtype) for _, parameter in named}
        if kinds in ({"torch.float16"}, {"torch.bfloat16"}) and shapes == [
            tuple(parameter.shape) for _, parameter in named
        ]:
            found.append((module, named))
    return found
