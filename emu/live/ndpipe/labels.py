"""Labels of all photos in a SQLite database.

Owns the schema, inserts, and the replacement of outdated labels. Does not own photos (shelf.py),
the file (database.py) or the computation of labels (store_process.py). Source: NDPipe (ASPLOS
2024): labels are kept apart from photos, with the version of the model that gave them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ondie.emu.live.ndpipe.database import Database
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

    Raises InputError if it is missing, has another schema, or cannot be used (database.py), the
    last in all methods; the file stays as it is.
    """

    def __init__(self, path: Path, create: bool = False) -> None:
        if not create and not path.exists():
            raise InputError(f"{path}: no such label database; `ondie ndpipe train` creates one")
        made = (TABLE, f"PRAGMA user_version = {SCHEMA}") if create else ()
        self._base = Database(path, "a label database", made)
        try:
            ((schema,),) = self._base.rows("PRAGMA user_version")
            if schema != SCHEMA or self._base.table("labels") != TABLE:
                raise InputError(
                    f"{path}: label database of schema {schema}; must have schema {SCHEMA} of ondie"
                )
        except InputError:
            self.close()
            raise

    def insert(self, rows: Iterable[tuple[int, int, int, int | None]]) -> None:
        """Add photos without labels: number, store, copy, truth; all of them or none."""
        self._base.write(
            "INSERT INTO labels (photo, store, copy, truth) VALUES (?, ?, ?, ?)", [*rows]
        )

    def places(self) -> list[tuple[int, int, int, int | None]]:
        """Return number, store, copy and truth of every photo, by number."""
        return self._base.rows("SELECT photo, store, copy, truth FROM labels ORDER BY photo")

    def outdated(self, version: int) -> list[tuple[int, int, int]]:
        """Return number, store and copy of the photos whose label is missing or of a version before
        ``version``."""
        return self._base.rows(
            "SELECT photo, store, copy FROM labels WHERE version IS NULL OR version < ? "
            "ORDER BY photo",
            (version,),
        )

    def replace(self, version: int, found: Iterable[tuple[int, int]]) -> int:
        """Write labels (photo, label) of ``version`` where they are outdated, all or none; return
        the number of photos. Others stay, such as those inserted meanwhile."""
        return self._base.write(
            "UPDATE labels SET label = ?2, version = ?3 "
            "WHERE photo = ?1 AND (version IS NULL OR version < ?3)",
            [(photo, label, version) for photo, label in found],
        )

    def all(self) -> dict[int, tuple[int | None, int | None]]:
        """Return label and version of every photo."""
        rows = self._base.rows("SELECT photo, label, version FROM labels")
        return {photo: (label, version) for photo, label, version in rows}

    def counts(self) -> tuple[int, dict[int, int]]:
        """Return the number of photos, and that of labels by the version that gave them."""
        rows = self._base.rows("SELECT version, count(*) FROM labels GROUP BY version")
        found = dict(rows)
        return sum(found.values()), {each: n for each, n in found.items() if each is not None}

    def close(self) -> None:
        """Close the database."""
        self._base.close()
