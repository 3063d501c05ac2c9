"""ondie: emulated computational storage drives, and training that uses them.

    import ondie

    result = ondie.compare("gpt2-124m", "csd-pe")
    print(result)                        # the output of `ondie compare`
    result.to_pandas()                   # one row for each strategy

Owns the public names for scripts and notebooks. A name is imported when it is first used. Does not
own the objects behind the names. Source: PEP 562 (module __getattr__).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ondie.emu.config.config import Config as Config
    from ondie.emu.config.config import configuration as _configuration
    from ondie.emu.csd_optimizer import CSDOptimizer as CSDOptimizer
    from ondie.emu.drive import CommandError as CommandError
    from ondie.emu.drive import Drive as Drive
    from ondie.emu.drive import MediaError as MediaError
    from ondie.emu.nvme.status import Condition as Condition
    from ondie.emu.nvme.status import Status as Status
    from ondie.emu.paths.base import Options as Options
    from ondie.emu.results.comparison import ComparisonResult as ComparisonResult
    from ondie.emu.results.comparison import compare as compare
    from ondie.emu.results.loading import SavedResult as SavedResult
    from ondie.emu.results.loading import load as load
    from ondie.emu.results.replay import ReplayResult as ReplayResult
    from ondie.emu.results.replay import replay as replay
    from ondie.emu.service import Service as Service
    from ondie.emu.states.drive_states import DriveStates as DriveStates
    from ondie.emu.units import InputError as InputError

    preset = _configuration

_NAMES = {
    "CSDOptimizer": ("ondie.emu.csd_optimizer", "CSDOptimizer"),
    "ComparisonResult": ("ondie.emu.results.comparison", "ComparisonResult"),
    "CommandError": ("ondie.emu.drive", "CommandError"),
    "Condition": ("ondie.emu.nvme.status", "Condition"),
    "Config": ("ondie.emu.config.config", "Config"),
    "Drive": ("ondie.emu.drive", "Drive"),
    "DriveStates": ("ondie.emu.states.drive_states", "DriveStates"),
    "InputError": ("ondie.emu.units", "InputError"),
    "MediaError": ("ondie.emu.drive", "MediaError"),
    "Options": ("ondie.emu.paths.base", "Options"),
    "ReplayResult": ("ondie.emu.results.replay", "ReplayResult"),
    "SavedResult": ("ondie.emu.results.loading", "SavedResult"),
    "Service": ("ondie.emu.service", "Service"),
    "Status": ("ondie.emu.nvme.status", "Status"),
    "compare": ("ondie.emu.results.comparison", "compare"),
    "load": ("ondie.emu.results.loading", "load"),
    "preset": ("ondie.emu.config.config", "configuration"),
    "replay": ("ondie.emu.results.replay", "replay"),
}
"""Table of the public names: name -> (module, name in the module)."""

__all__ = [*sorted(_NAMES)]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(
            f"module 'ondie' has no attribute {name!r}; it has {', '.join(_NAMES)}"
        )
    module, attribute = _NAMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
