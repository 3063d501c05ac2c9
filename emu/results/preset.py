"""The device of a run in Python: a preset, a TOML file or a configuration, with overrides.

Owns the arguments. Does not own the configuration (ondie.emu.config). Source: none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ondie.emu.config.config import Config, load_preset
from ondie.emu.units import InputError


def preset(
    device: str | os.PathLike[str] | Config,
    settings: Iterable[str] = (),
    devices: int | None = None,
) -> Config:
    """Return the configuration of a preset, a TOML file or a configuration, with overrides.

    Raises InputError for an unknown preset, key or value, and for overrides of a configuration.
    """
    if isinstance(settings, str):
        raise InputError(f"settings: {settings!r}; must be a list, such as [{settings!r}]")
    extra = () if devices is None else (f"system.devices={devices}",)
    every = [*settings, *extra]
    if not isinstance(device, Config):
        return load_preset(device, every)
    if every:
        raise InputError(
            "settings and devices cannot be combined with a Config; use Config.replace, or give "
            "the name of a preset as device"
        )
    return device
