"""Crops of photographs from scikit-learn and scikit-image, as JPEG files with classes.

Owns the list of photographs, its division into training and test photographs, and the classes. Does
not own the storage of the files (shelf.py).
Source: this project. The photographs are part of the two installed packages, so no photograph is
downloaded.

The class of a crop is the transformation that is applied to it. A network can therefore learn the
classes on some photographs and be tested on others.
"""

from __future__ import annotations

import importlib.util
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ondie.emu.live.ndpipe.shelf import EDGE, pillow
from ondie.emu.units import InputError

TRAINED = (
    "china.jpg", "astronaut.png", "rocket.jpg", "gravel.png", "coins.png", "ihc.png", "grass.png",
    "motorcycle_left.png", "hubble_deep_field.jpg",
)  # fmt: skip
"""Names of the photographs from which the crops for pretraining and the photos of the stores are
cut."""
HELD_OUT = ("flower.jpg", "chelsea.png", "coffee.png", "camera.png", "brick.png", "retina.jpg")
"""Names of the photographs from which only crops for tests are cut."""
CLASSES = ("as it is", "blurred", "moved sideways", "moved upwards", "noisy", "few levels")
PRETRAINED = 4
"""Number of classes on which the backbone is pretrained; these classes are the first elements of
CLASSES."""
QUALITY = 90
"""Quality setting of Pillow for the JPEG files."""
BORDER = 4
"""Width of the border around a crop, pixels. Blurring and shifting a crop use the pixels of its
border."""


@dataclass(frozen=True)
class Photo:
    """JPEG file of a crop with its class (``label``) and the name of the photograph
    (``source``)."""

    jpeg: bytes
    label: int
    source: str


def crops(sources: tuple[str, ...], count: int, classes: int, seed: int) -> list[Photo]:
    """Return ``count`` crops of the photographs ``sources`` at random positions, of the first
    ``classes`` classes. The numbers of crops of two classes differ by at most one. Raises
    InputError if a package or photograph is missing."""
    rng = np.random.default_rng(seed)
    pictures = [_picture(name) for name in sources]
    found = []
    for number in range(count):
        which = int(rng.integers(len(sources)))
        label = number % classes
        pixels = _treated(_cut(pictures[which], rng), label, rng)
        found.append(Photo(jpeg_file(pixels), label, sources[which]))
    return found


def jpeg_file(pixels: np.ndarray) -> bytes:
    """Return the pixels, uint8[height, width, 3], as a JPEG file."""
    out = io.BytesIO()
    pillow().fromarray(pixels).save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def _picture(name: str) -> np.ndarray:
    """Return the photograph ``name``, uint8[height, width, 3]. Raises InputError if a package or
    the photograph is missing."""
    for package, folder in (("sklearn", "datasets/images"), ("skimage", "data")):
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise InputError(
                f"{package} is not installed, but its photographs are needed; install it with: "
                "pip install 'ondie[train]'"
            )
        path = Path(spec.submodule_search_locations[0]) / folder / name
        if path.is_file():
            with pillow().open(path) as picture:
                return np.asarray(picture.convert("RGB"))
    raise InputError(
        f"{name}: not found in the installed packages scikit-learn and scikit-image; install both "
        "packages again"
    )


def _cut(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a crop at a random position, including its border, float64[EDGE + 2 BORDER, EDGE + 2
    BORDER, 3]."""
    size = EDGE + 2 * BORDER
    top, left = (int(rng.integers(edge - size + 1)) for edge in picture.shape[:2])
    return picture[top : top + size, left : left + size].astype(np.float64)


def _treated(crop: np.ndarray, label: int, rng: np.random.Generator) -> np.ndarray:
    """Return the crop with the transformation of class ``label`` and without its border,
    uint8[EDGE, EDGE, 3]."""
    low, high = BORDER, BORDER + EDGE
    match label:
        case 1:
            shifts = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
        case 2:
            shifts = [(0, right) for right in range(-BORDER, BORDER + 1)]
        case 3:
            shifts = [(down, 0) for down in range(-BORDER, BORDER + 1)]
        case _:
            shifts = [(0, 0)]
    parts = [crop[low + down : high + down, low + right : high + right] for down, right in shifts]
    out = np.mean(parts, axis=0)
    if label == 4:
        out = out + rng.normal(0, 20, out.shape)
    elif label == 5:
        out = np.floor(out / 64) * 64 + 32
    return np.clip(np.rint(out), 0, 255).astype(np.uint8)
