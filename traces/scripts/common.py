"""Shared code of the training scripts: determinism, data, and the result of train().

This module owns the settings of a run (one thread, one seed) and their restoration, the text and
the digits. It does not own models, training loops or optimizers.
Source: text: an excerpt of pydoc_data.topics, see ../data/PROVENANCE.toml, shipped so that a run
    can be repeated under any Python; digits: scikit-learn's load_digits (UCI, 8 x 8 pixels).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

#: update(params, **hyper) -> object with step() and zero_grad(). params: parameters, or torch's
#: parameter groups, whose dicts a schedule changes. hyper: torch's keyword arguments.
Update = Callable[..., Any]


class Result(NamedTuple):
    """Result of train(): the loss of every step, and the final weights by name, float32."""

    losses: list[float]
    weights: dict[str, npt.NDArray[np.float32]]


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Use one thread, deterministic algorithms and this seed inside the block.

    The previous settings are restored afterwards.
    """
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(strict)


class Windows(Dataset[Any]):
    """Data set of all windows of `context` successive characters of a text.

    A sample consists of a window and of the window that begins one character later, which contains
    the next character for each position of the first window.
    """

    def __init__(self, tokens: npt.NDArray[np.int64], context: int) -> None:
        self.tokens, self.context = torch.from_numpy(tokens), context

    def __len__(self) -> int:
        return len(self.tokens) - self.context

    def __getitem__(self, at: int) -> Any:
        window = self.tokens[at : at + self.context + 1]
        return window[:-1], window[1:]


def text() -> str:
    """Return the English training text that is shipped with ondie (data/topics.txt)."""
    return (Path(__file__).parents[1] / "data" / "topics.txt").read_text("utf-8")


def digits() -> TensorDataset:
    """Return scikit-learn's 1,797 images of digits, float32[1, 8, 8] from 0 to 1, with labels."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images.astype(np.float32) / 16).unsqueeze(1)
    return TensorDataset(images, torch.from_numpy(bunch.target.astype(np.int64)))


def batches(data: Dataset[Any], size: int, steps: int, seed: int) -> Iterator[Any]:
    """Yield `steps` batches of shuffled samples, epoch after epoch.

    The order depends only on the seed.
    """
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(data, size, shuffle=True, drop_last=True, generator=order)
    taken = 0
    while True:
        for batch in loader:
            if taken == steps:
                return
            taken += 1
            yield batch


def lost(losses: list[float]) -> bool:
    """Return True if the last loss is NaN; gradients are then NaN and training ends."""
    return math.isnan(losses[-1])


def weights(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, npt.NDArray[np.float32]]:
    """Return copies of the parameters as float32 arrays, by name."""
    return {name: value.detach().float().numpy().copy() for name, value in named}


def run(train: Callable[..., Result], steps: int, seed: int) -> None:
    """Train once and print the losses; this is the main function of a script.

    Command line arguments: number of steps (optional), seed (optional).
    """
    arguments = [int(argument) for argument in sys.argv[1:]]
    steps, seed = (arguments + [steps, seed][len(arguments) :])[:2]
    losses = train(steps=steps, seed=seed).losses
    sys.stdout.write(f"{steps} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}\n")
