"""Jobs of NDPipe's Tuner: training, labeling of new photos, and replacement of labels.

Owns the parameters of jobs and their checks. Does not own the execution of jobs (tuner.py).
Source: this project.
"""

from __future__ import annotations

from dataclasses import dataclass

from ondie.emu.units import InputError, known_names, quoted, whole_number

FORMAT_NAMES = ("fp32", "fp16")


@dataclass(frozen=True, kw_only=True)
class Train:
    """Job that fine-tunes the head (last layer) of the network.

    ``stores``, ``photos``: number of stores and photos of a new system. ``runs``: number of
    training runs; the stores compute the features of a run while the Tuner trains on the previous
    run. ``cut``: last layer of the network that the stores compute. ``format``: format of the
    features on the wire. ``epochs``: number of epochs of the pretraining and of each run.
    ``pretrain``, ``held_out``: number of crops for the pretraining and for the test. ``base``:
    model version from which the training starts, or None for the latest version. ``kill``: (store,
    number of photos); the store kills itself after it has sent the features of this number of
    photos. Raises InputError for an unknown format, for a number out of range, or if there are
    fewer photos than stores.
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
                f"format {quoted(self.format)}: unknown; {known_names(self.format, FORMAT_NAMES)}"
            )


@dataclass(frozen=True)
class Infer:
    """Job that stores and labels new photos (online inference). ``photos``: names of JPEG files."""

    photos: tuple[str, ...]


@dataclass(frozen=True)
class Relabel:
    """Job that replaces the labels produced by earlier model versions. ``photos``: names of JPEG
    files that are inserted during the job."""

    photos: tuple[str, ...] = ()


Job = Train | Infer | Relabel
