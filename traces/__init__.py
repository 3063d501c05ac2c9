"""Traces of training runs, recorded or synthetic: ondie.traces.

This package owns load() and names(), which find a trace by path, by the name of a shipped recording
or by the name of a synthetic model. It does not own devices or update kernels. Recording
(record.py) and torch are imported on demand.
Source: the trace contract of this project; shipped recordings and their PROVENANCE.toml in data/.
"""

import difflib
import os
from pathlib import Path

if __name__ != "ondie.traces":
    raise ImportError(
        f"import ondie.traces, not {__name__}: a top-level module name may collide with another "
        "package"
    )

from ondie.traces.errors import TraceError
from ondie.traces.hdf5 import write
from ondie.traces.hdf5_read import read
from ondie.traces.info import info
from ondie.traces.model import Memory, Trace, flat_tensors
from ondie.traces.records import Step, Tensor
from ondie.traces.synth import build, models

__all__ = [
    "DATA",
    "Memory",
    "Step",
    "Tensor",
    "Trace",
    "TraceError",
    "build",
    "flat_tensors",
    "info",
    "load",
    "names",
    "read",
    "write",
]

#: Folder of the shipped recordings.
DATA = Path(__file__).parent / "data"


def names() -> dict[str, list[str]]:
    """Return the names that load() accepts: {"recorded": [...], "synthetic": [...]}."""
    return {"recorded": sorted(path.stem for path in DATA.glob("*.h5")), "synthetic": models()}


def load(name_or_path: str | os.PathLike[str]) -> Trace:
    """Return a trace by path (ending in .h5), by the name of a shipped recording or by the name of
    a synthetic model.

    Raises TraceError with a one-line message for a damaged trace and for an unknown name. The
    message for an unknown name includes the nearest known name.
    """
    text = os.fspath(name_or_path)
    if isinstance(name_or_path, os.PathLike) or text.endswith((".h5", ".hdf5")) or os.sep in text:
        return read(text)
    known = names()
    if text in known["recorded"]:
        return read(DATA / f"{text}.h5")
    if text in known["synthetic"]:
        return build(text)
    everything = [*known["recorded"], *known["synthetic"]]
    near = difflib.get_close_matches(text.lower(), everything, n=1, cutoff=0.4)
    hint = f"nearest: {near[0]!r}" if near else "known: " + ", ".join(everything)
    raise TraceError(f"{text!r} is neither a trace's name nor a file ending in .h5: {hint}")
