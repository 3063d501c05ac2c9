"""Labels of all photos in a SQLite database.

Owns the schema and its check, inserts, and the replacement of outdated labels. Does not own photos
(shelf.py) or who computes labels (store_process.py). Source: NDPipe (ASPLOS 2024): labels are kept
apart from photos, with the version of the model that gave them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from ondie.emu.units import InputError

SCHEMA = 1
TABLE = (
    "CREATE TABLE labels (photo INTEGER PRIMARY KEY, store INTEGER NOT NULL, "
    "copy INTEGER NOT NULL, truth INTEGER, label INTEGER, version INTEGER)"
)
"""``store``, ``copy``: where the photo lies. ``truth``: class for training, if known. ``label`` and
``version``: result of inference and the model that gave it, both NULL without one."""


class Labels:
    """The database in file ``path``; a missing one is created if ``create``.

    Raises InputError if it is missing, no database, or has another schema; the file stays as it is.
    """

    def __init__(self, path: Path, create: bool = False) -> None:
        if not create and not path.is_file():
            raise InputError(f"{path}: no such label database; `ondie ndpipe train` creates one")
        self.path = path
        self._base = sqlite3.connect(path, timeout=30)
        try:
            if create:
                with self._base:
                    self._base.execute(TABLE)
                    self._base.execute(f"PRAGMA user_version = {SCHEMA}")
            (schema,) = self._base.execute("PRAGMA user_version").fetchone()
            found = self._base.execute("SELECT sql FROM sqlite_master WHERE name = 'labels'")
            table = found.fetchone()
        except sqlite3.DatabaseError as error:
            self._base.close()
            raise InputError(f"{path}: cannot be used as a label database: {error}") from error
        if schema != SCHEMA or table != (TABLE,):
            self._base.close()
            raise InputError(
                f"{path}: label database of schema {schema}; must have schema {SCHEMA} of ondie"
            )

    def insert(self, rows: Iterable[tuple[int, int, int, int | None]]) -> None:
        """Add photos without labels: number, store, copy, truth; all of them or none."""
        with self._base:
            self._base.executemany(
                "INSERT INTO labels (photo, store, copy, truth) VALUES (?, ?, ?, ?)", rows
            )

    def places(self) -> list[tuple[int, int, int, int | None]]:
        """Return number, store, copy and truth of every photo, by number."""
        text = "SELECT photo, store, copy, truth FROM labels ORDER BY photo"
        return self._base.execute(text).fetchall()

    def outdated(self, version: int) -> list[tuple[int, int, int]]:
        """Return number, store and copy of the photos whose label is missing or of a version before
        ``version``."""
        return self._base.execute(
            "SELECT photo, store, copy FROM labels WHERE version IS NULL OR version < ? "
            "ORDER BY photo",
            (version,),
        ).fetchall()

    def replace(self, version: int, found: Iterable[tuple[int, int]]) -> int:
        """Write labels (photo, label) of ``version`` where they are outdated, all or none; return
        the number of photos. Others stay, such as those inserted meanwhile."""
        with self._base:
            before = self._base.total_changes
            self._base.executemany(
                "UPDATE labels SET label = ?2, version = ?3 "
                "WHERE photo = ?1 AND (version IS NULL OR version < ?3)",
                [(photo, label, version) for photo, label in found],
            )
            return self._base.total_changes - before

    def all(self) -> dict[int, tuple[int | None, int | None]]:
        """Return label and version of every photo."""
        rows = self._base.execute("SELECT photo, label, version FROM labels").fetchall()
        return {photo: (label, version) for photo, label, version in rows}

    def counts(self) -> tuple[int, dict[int, int]]:
        """Return the number of photos, and that of labels by the version that gave them."""
        rows = self._base.execute("SELECT version, count(*) FROM labels GROUP BY version")
        found = dict(rows.fetchall())
        return sum(found.values()), {each: n for each, n in found.items() if each is not None}

    def close(self) -> None:
        """Close the database."""
        self._base.close()
