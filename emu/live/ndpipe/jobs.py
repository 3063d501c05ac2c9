"""Jobs of the Tuner.

Owns their options and checks. Does not own their execution (tuner.py). Source: this project.
"""

from __future__ import annotations

from dataclasses import dataclass

from ondie.emu.units import InputError, known_names, quoted, whole_number

FORMAT_NAMES = ("fp32", "fp16")


@dataclass(frozen=True, kw_only=True)
class Train:
    """Fine-tuning of the head. ``cut``: last layer that the stores run. ``runs``: pipelined runs.

    ``format``: of the features on the wire. ``epochs``: of pretraining and of each run.
    ``photos``: photos of a new system; ``stores``: its stores. ``pretrain``, ``held_out``: crops
    for pretraining and for the test. ``base``: version to start from; None: the latest. ``kill``:
    store that dies after ``kill[1]`` photos. Raises InputError for a value outside its range.
    """

    stores: int = 3
    photos: int = 600
    runs: int = 1
    cut: str = "avgpool"
    format: str = "fp32"
    epochs: int = 10
    pretrain: int = 2400
    held_out: int = 2000
    seed: int = 1
    base: int | None = None
    kill: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        whole_number("stores", self.stores, 1, 64)
        whole_number("photos", self.photos, 1, 1 << 20)
        if self.photos < self.stores:
            raise InputError(
                f"photos = {self.photos}: {self.stores} stores need at least one photo each"
            )
        whole_number("runs", self.runs, 1, 10)
        whole_number("epochs", self.epochs, 1, 1000)
        whole_number("pretrain", self.pretrain, 1, 1 << 20)
        whole_number("held_out", self.held_out, 1, 1 << 20)
        whole_number("seed", self.seed, 0, 1 << 31)
        if self.format not in FORMAT_NAMES:
            raise InputError(
                f"format {quoted(self.format)}: {known_names(self.format, FORMAT_NAMES)}"
            )


@dataclass(frozen=True)
class Infer:
    """Online inference: photos (names of JPEG files) are stored and labelled."""

    photos: tuple[str, ...]


@dataclass(frozen=True)
class Relabel:
    """Replacement of outdated labels; ``photos`` arrive meanwhile."""

    photos: tuple[str, ...] = ()


Job = Train | Infer | Relabel
