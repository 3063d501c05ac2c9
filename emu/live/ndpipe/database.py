"""Access to the SQLite files of the live system; every error names the file.

Owns the check of a file and its table, and the errors. Does not own tables (labels.py, shelf.py).
Source: SQLite's documentation of PRAGMA quick_check and of result codes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ondie.emu.units import InputError

WAIT_S = 30.0
"""Maximum time to wait while another process writes to the SQLite file, s."""


class Database:
    """SQLite database in the file ``path``. ``what``: description of the database in error
    messages. ``create``: statements that create its tables.

    The constructor and all methods raise InputError if SQLite cannot read or write the file, for
    example because the file is damaged or is not a database. The file is not changed in this case.
    """

    def __init__(self, path: Path, what: str, create: Sequence[str] = ()) -> None:
        self.path, self.what = path, what
        with self._named():
            self._base = sqlite3.connect(path, timeout=WAIT_S)
        try:
            with self._named():
                with self._base:
                    for statement in create:
                        self._base.execute(statement)
                (found,) = self._base.execute("PRAGMA quick_check(1)").fetchone()
        except InputError:
            self._base.close()
            raise
        if found != "ok":
            self._base.close()
            raise InputError(f"{path}: cannot be used as {what}: {' '.join(found.split())}")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Convert errors of SQLite in this context to InputError."""
        try:
            yield
        except sqlite3.Error as error:
            raise InputError(f"{self.path}: cannot be used as {self.what}: {error}") from error

    def rows(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that the SQL query ``text`` with the parameters ``values`` returns."""
        with self._named():
            return self._base.execute(text, values).fetchall()

    def write(self, text: str, rows: Sequence[Sequence[object]]) -> int:
        """Execute the SQL statement ``text`` once for each row of values, in one transaction.
        Return the number of changed rows."""
        with self._named(), self._base:
            before = self._base.total_changes
            self._base.executemany(text, rows)
            return self._base.total_changes - before

    def table(self, name: str) -> str | None:
        """Return the statement that created the table ``name``, or None if there is no such
        table."""
        found = self.rows("SELECT sql FROM sqlite_master WHERE name = ?", (name,))
        return found[0][0] if found else None

    def close(self) -> None:
        """Close the file."""
        self._base.close()
