"""Loading of training traces, block traces and saved results by name or path.

Owns the choice of the format by the suffix of the name. Does not own any format (ondie.traces).
Source: this project.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ondie import traces
from ondie.emu.results.result import Result
from ondie.emu.units import InputError
from ondie.traces import block
from ondie.traces.block_model import BlockTrace


@dataclass(frozen=True, repr=False)
class SavedResult(Result):
    """Result that was loaded from its JSON document, without the simulation objects of the runs."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that the result had when it was saved."""
        if "answer" not in self.data:
            return super().rows()
        from ondie.emu.results.comparison import rows_of_document

        return rows_of_document(self.data)


def load(
    name_or_path: str | os.PathLike[str], format: str | None = None, **options: Any
) -> traces.Trace | BlockTrace | SavedResult:
    """Load a training trace, a block trace, or a saved result.

    name_or_path: name of a shipped trace, or a file. A .json file is a saved result, an .h5 file a
    training trace. With ``format`` ("mqsim", "msr", "fio", "blkparse"), the file is a block trace.
    options: keyword arguments of traces.block.read_block. Raises TraceError or InputError with a
    one-line message if the file cannot be loaded or an option is invalid.
    """
    text = os.fspath(name_or_path)
    if format is not None or text in block.SAMPLES:
        return block.load_block(name_or_path, format, **options)
    if options:
        raise InputError(
            f"{text}: {', '.join(options)} can be used only with format, the format of a block "
            "trace"
        )
    if not text.endswith(".json"):
        return traces.load(name_or_path)
    try:
        document = json.loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{text}: cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise InputError(f"{text}: is not a saved result: it must be a JSON object")
    return SavedResult(document)
