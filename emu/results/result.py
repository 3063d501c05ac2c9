"""Base class of all results: a JSON document that can be shown, saved and converted to rows.

Owns the conversion of a document to text, HTML, CSV, a DataFrame and files. Does not own the
contents of any document.
Source: this project.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ondie.emu.files import write_atomically
from ondie.emu.units import InputError

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, RenderableType

WIDTH = 132
"""Width of a result as text or HTML, in characters."""
Row = Mapping[str, Any]


def as_json(result: Any, sort_keys: bool = False) -> str:
    """Return a result as the text of a JSON document. Raises ValueError for an infinity or NaN."""
    return json.dumps(result, indent=1, sort_keys=sort_keys, allow_nan=False) + "\n"


def flat(row: Row, above: str = "") -> dict[str, Any]:
    """Return a row in which each nested object is replaced by its members, with keys such as
    "object.member".

    A list is replaced by its JSON text. ``above``: prefix of all keys.
    """
    found: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        else:
            found[name] = json.dumps(value) if isinstance(value, list | tuple) else value
    return found


def rows_of(document: Any) -> list[dict[str, Any]]:
    """Return the rows of a JSON document as flat dictionaries.

    A list has one row for each element. An object with a list "rows" has the rows of this list. Any
    other object has one row (key, value) for each member.
    """
    if isinstance(document, str):
        document = json.loads(document)
    if isinstance(document, Mapping) and isinstance(document.get("rows"), list):
        document = document["rows"]
    if isinstance(document, list):
        return [flat(row) if isinstance(row, Mapping) else {"value": row} for row in document]
    return [{"key": key, "value": value} for key, value in flat(document).items()]


def as_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV text with a header (RFC 4180, but lines end with a line feed).

    The columns are the keys of all rows in order of appearance. None becomes an empty cell.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        cells = (row.get(key) for key in columns)
        writer.writerow("" if cell is None else cell for cell in cells)
    return text.getvalue()


def frame(rows: Any) -> pandas.DataFrame:
    """Return rows, or columns by name, as a pandas DataFrame. Raises InputError if pandas is not
    installed."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise InputError(
            "to_pandas: requires pandas, which is not installed; run pip install 'ondie[pandas]'"
        ) from error
    return pandas.DataFrame(rows)


@dataclass(frozen=True, repr=False)
class Result:
    """Base class of the results of ondie's commands. ``data`` is the JSON document that the command
    writes with `--json`."""

    data: dict[str, Any]
    sort_keys: ClassVar[bool] = False
    """True if the keys of the written document are sorted."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the main table as flat dictionaries, with numbers instead of formatted
        text."""
        return rows_of(self.data)

    def to_pandas(self) -> pandas.DataFrame:
        """Return `rows` as a DataFrame. Raises InputError if pandas is not installed."""
        return frame(self.rows())

    def table(self) -> RenderableType:
        """Return the main table as an object that rich can print."""
        from rich.table import Table

        rows = self.rows()
        out = Table(*dict.fromkeys(key for row in rows for key in row))
        for row in rows:
            out.add_row(*("" if cell is None else str(cell) for cell in row.values()))
        return out

    def parts(self) -> Iterable[RenderableType]:
        """Yield the tables and lines that `show` prints."""
        yield self.table()

    def show(self, console: Console) -> None:
        """Print the result on a rich console, as the command line does."""
        for part in self.parts():
            console.print(part, highlight=False)

    def __str__(self) -> str:
        file = io.StringIO()
        self.show(self._console(file))
        return file.getvalue()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: print() shows it, .data is its JSON document>"

    def _repr_html_(self) -> str:
        """Return the result as HTML, for a notebook."""
        file = io.StringIO()
        console = self._console(file, record=True)
        self.show(console)
        return console.export_html(
            inline_styles=True, code_format='<pre style="line-height:1.2">{code}</pre>'
        )

    @staticmethod
    def _console(file: io.StringIO, record: bool = False) -> Console:
        from rich.console import Console

        return Console(file=file, width=WIDTH, record=record, markup=False, emoji=False)

    def files(self, path: Path) -> dict[Path, bytes]:
        """Return the contents of the file that `save` writes to ``path``, as {path: bytes}. Raises
        InputError if the suffix is neither .json nor .csv."""
        if path.suffix == ".json":
            return {path: as_json(self.data, self.sort_keys).encode()}
        if path.suffix == ".csv":
            return {path: as_csv(self.rows()).encode()}
        raise InputError(f"{path}: use a file name that ends in .json or .csv")

    def save(self, path: str | Path) -> Path:
        """Write the document (.json) or the rows (.csv) to a file. Return the path.

        If writing fails, no partial file remains. Raises InputError if the file name has another
        suffix or the file cannot be written.
        """
        target = Path(path)
        write_atomically(self.files(target))
        return target
