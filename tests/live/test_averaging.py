"""Are the recorded gradients the means of a host and four drives by batch, and biased by rank?

The batches are the recorded 16 samples, split 12 + 4 x 1 as STANNIS tuned 315 and 25. The drives'
data are private: the windows of text that contain the fewest small letters and blanks. The result
of the study that measured and trained more is docs/studies/averaging.md.
"""

import numpy as np
import pytest

from ondie.emu.cluster.data_split import largest_remainder
from ondie.traces import load

torch = pytest.importorskip("torch", reason="torch is not installed")

from ondie.traces.scripts import common, gpt  # noqa: E402

BATCHES = (12, 1, 1, 1, 1)
BY_BATCH = np.array(BATCHES) / sum(BATCHES)
BY_RANK = np.full(len(BATCHES), 1 / len(BATCHES))
ROUNDING = 1e-5
"""Relative distance below which gradients differ in roundings only."""


class Recorded:
    """The recorded GPT at its initial weights, and gradients of windows of its text."""

    def __init__(self):
        text = common.text()
        letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
        self.tokens = np.array([letters[letter] for letter in text], np.int64)
        self.trace = load("gpt-small")
        model = gpt.GPT(len(letters), gpt.CONTEXT, width=48, layers=2, heads=4)
        shapes = [p for p in model.parameters() if p.ndim > 1]
        shapes += [p for p in model.parameters() if p.ndim == 1]
        self.model, self.params = model, shapes
        weights, at = self.trace.weights("initial"), 0
        with torch.no_grad():
            for param in shapes:
                part = weights[at : at + param.numel()].copy()
                param.copy_(torch.from_numpy(part).view(param.shape))
                at += param.numel()
        prose = np.cumsum([0, *(letter.islower() or letter.isspace() for letter in text)])
        starts = np.arange(len(text) - gpt.CONTEXT)
        self.signs = gpt.CONTEXT - (prose[starts + gpt.CONTEXT] - prose[starts])

    def gradient(self, windows):
        taken = torch.from_numpy(self.tokens[windows[:, None] + np.arange(gpt.CONTEXT + 1)])
        logits = self.model(taken[:, :-1]).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, taken[:, 1:].flatten())
        grads = torch.autograd.grad(loss, self.params)
        return torch.cat([grad.reshape(-1) for grad in grads]).numpy()

    def private(self, windows):
        """Windows dealt in proportion to the batches; drives hold those least like prose."""
        ordered = windows[np.argsort(self.signs[windows], kind="stable")]
        return np.split(ordered, np.cumsum(largest_remainder(len(windows), BATCHES))[:-1])


@pytest.fixture(scope="module")
def recorded():
    with common.deterministic(1):
        yield Recorded()


def relative_distance(found, right):
    return np.linalg.norm(found.astype(np.float64) - right) / np.linalg.norm(right)


def test_by_batch_is_the_recorded_gradient_and_by_rank_is_not(recorded):
    step = recorded.trace.steps[0]
    whole = recorded.gradient(step.order)
    clipped = whole * np.float32(step.clip_coefficient)
    assert relative_distance(clipped, recorded.trace.gradient(0)) < ROUNDING
    means = np.stack([recorded.gradient(part) for part in recorded.private(step.order)])
    assert relative_distance(BY_BATCH @ means, whole) < ROUNDING
    error = BY_RANK @ means - whole
    assert np.linalg.norm(error) > 0.1 * np.linalg.norm(whole)
