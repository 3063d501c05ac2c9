"""Choice of the paths of a comparison, and of the two paths that its headline compares.

Owns the table of paths, the checks of path names and batches that a user gives, and the choice of
the headline's two paths. Does not own the paths (paths/) or their runs (analysis/compare.py).
Source: this project.
"""

from __future__ import annotations

from collections.abc import Sequence

from ondie.emu.ndpipe.trained_head import TrainedHead, trained_head
from ondie.emu.paths.base import Options, Path
from ondie.emu.paths.data_parallel import Stannis
from ondie.emu.paths.in_storage import InStorage
from ondie.emu.paths.near_data import NearData
from ondie.emu.paths.offload.path import HostOffload, PipelinedOffload
from ondie.emu.paths.on_die.deepstore import ChipLevel
from ondie.emu.paths.on_die.path import OnDie
from ondie.emu.paths.smart_infinity import SmartBase, SmartComp, SmartHandler, SmartUpdate
from ondie.emu.units import InputError, known_names
from ondie.traces import Trace

PATHS: dict[str, type[Path]] = {
    path.name: path
    for path in (
        HostOffload, PipelinedOffload, InStorage, OnDie, Stannis, NearData,
        ChipLevel, SmartBase, SmartUpdate, SmartHandler, SmartComp,
    )
}  # fmt: skip
BY_NAME = (ChipLevel.name, SmartBase.name, SmartUpdate.name, SmartHandler.name, SmartComp.name)
"""Update paths that a comparison runs only if the user names them."""
BASELINE = HostOffload.name
RIVALS = (OnDie.name, InStorage.name, PipelinedOffload.name)
"""Paths that the headline of a comparison may compare with the baseline. The headline uses the
first of these paths that ran."""


def choose(names: Sequence[str] | None, trace: Trace) -> list[str]:
    """Check the names of paths, and return them as a list. If ``names`` is empty or None, return
    all paths except those in BY_NAME, and ndpipe only if ``trace`` trains a head.

    Raises InputError for an unknown name or a name that is given twice.
    """
    if not names:
        head = isinstance(trained_head(trace), TrainedHead)
        usual = [name for name in PATHS if name not in BY_NAME]
        return [name for name in usual if head or name != NearData.name]
    for name in names:
        if name not in PATHS:
            raise InputError(f"--paths: unknown path {name!r}; {known_names(name, PATHS)}")
    for name in names:
        if list(names).count(name) > 1:
            raise InputError(f"--paths: {name!r} is named twice; name it once")
    return list(names)


def batched(names: Sequence[str], options: Options) -> list[str]:
    """Return the paths among ``names`` that use --host-batch and --drive-batch; an empty list if
    neither option was given. Raises InputError if an option was given but none of the paths trains
    on a cluster."""
    given = {"host": options.host_batch, "drive": options.drive_batch}
    found = [name for name in names if PATHS[name].exchanges]
    for node, batch in given.items():
        if batch is not None and not found:
            raise InputError(
                f"--{node}-batch {batch} applies only to training on a cluster, but "
                f"--paths has {', '.join(names)}; add {Stannis.name}, or remove this option"
            )
    return found if any(given.values()) else []


def headline_pair(ran: Sequence[str]) -> tuple[str, str] | None:
    """Return (baseline, rival), the two paths compared in the headline of a comparison. ``ran``:
    names of the paths that ran. Return None if ``ran`` does not contain the baseline or contains no
    rival."""
    if BASELINE not in ran:
        return None
    for name in RIVALS:
        if name in ran:
            return BASELINE, name
    return None
