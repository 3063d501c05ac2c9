"""Labels (classes) of all photos of an NDPipe system, in an SQLite database.

Owns the schema, inserts, and the replacement of outdated labels. Does not own photos (shelf.py),
the file (database.py) or the computation of labels (store_process.py).
Source: NDPipe (ASPLOS 2024): labels are stored separately from photos, with the version of the
model that produced them.
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
"""Statement that creates the table of labels. ``photo``: number of the photo. ``store``, ``copy``:
numbers of the stores that contain the photo and its copy, equal if there is no copy. ``truth``:
class for training, or NULL if it is unknown. ``label``, ``version``: result of inference and the
version of the model that produced it, both NULL before the first inference."""


class Labels:
    """Label database in the file ``path``. ``create``: True to create the database.

    Raises InputError if the file does not exist and ``create`` is False, if it has another schema,
    or if it cannot be used (database.py). All methods raise InputError if the file cannot be used.
    The file is not changed in these cases.
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
                    f"{path}: label database with schema {schema}; must have schema {SCHEMA}"
                )
        except InputError:
            self.close()
            raise

    def insert(self, rows: Iterable[tuple[int, int, int, int | None]]) -> None:
        """Add photos without labels in one transaction. Each row is (photo number, number of its
        store, number of the store of its copy, true class or None)."""
        self._base.write(
            "INSERT INTO labels (photo, store, copy, truth) VALUES (?, ?, ?, ?)", [*rows]
        )

    def places(self) -> list[tuple[int, int, int, int | None]]:
        """Return (photo number, number of its store, number of the store of its copy, true class or
        None) of every photo, in ascending order of the photo numbers."""
        return self._base.rows("SELECT photo, store, copy, truth FROM labels ORDER BY photo")

    def outdated(self, version: int) -> list[tuple[int, int, int]]:
        """Return (photo number, number of its store, number of the store of its copy) of the photos
        whose label is missing or was produced by a model version before ``version``."""
        return self._base.rows(
            "SELECT photo, store, copy FROM labels WHERE version IS NULL OR version < ? "
            "ORDER BY photo",
            (version,),
        )

    def replace(self, version: int, found: Iterable[tuple[int, int]]) -> int:
        """Write the labels ``found``, given as (photo number, label), in one transaction.
        ``version``: version of the model that produced them. Only missing labels and labels that
        earlier versions produced are replaced. Return the number of changed photos."""
        return self._base.write(
            "UPDATE labels SET label = ?2, version = ?3 "
            "WHERE photo = ?1 AND (version IS NULL OR version < ?3)",
            [(photo, label, version) for photo, label in found],
        )

    def all(self) -> dict[int, tuple[int | None, int | None]]:
        """Return (label, version of the model that produced it) of every photo, by photo number.
        Both are None before the first inference."""
        rows = self._base.rows("SELECT photo, label, version FROM labels")
        return {photo: (label, version) for photo, label, version in rows}

    def counts(self) -> tuple[int, dict[int, int]]:
        """Return the number of photos, and the number of labels by the model version that produced
        them."""
        rows = self._base.rows("SELECT version, count(*) FROM labels GROUP BY version")
        found = dict(rows)
        return sum(found.values()), {each: n for each, n in found.items() if each is not None}

    def close(self) -> None:
        """Close the database."""
        self._base.close()
