"""Speed of the LDPC code on one core.

Owns the cases of `ondie bench kernels --op ldpc`. Does not own the code (kernels/ldpc.py) or the
timing of a call (kernels/bench/run.py).
Source: this project.

A sample is the time of one word, each word has its own errors, and the row is the median of words.
All contenders decode the same words, one after another, word by word.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np

from ondie.emu.validate.ldpc_curve import intervals
from ondie.kernels import isas
from ondie.kernels.bench.run import Bench, Row, machine, timed
from ondie.kernels.ldpc import Ldpc
from ondie.kernels.ldpc_code import Code

RATES = (0.0, 1e-3, 4e-3, 6e-3, 7e-3)
"""Raw bit error rates of hard input."""
SOFT = 1e-2
"""Raw bit error rate of input from three reads."""
TARGET_RATE, TARGET_US = 4e-3, 25.0
"""Time of a word at one of the rates with AVX-512."""
WORDS, QUICK_WORDS = 40, 3


def run(
    quick: bool = False,
    progress: Callable[[str], object] = lambda what: None,
    of: Code | None = None,
) -> Bench:
    """Measure encoding and decoding by the widest instruction set, and by the others against it."""
    kernels = [Ldpc("c", isa, of) for isa in reversed(isas())] or [Ldpc("numba", of=of)]
    names = [kernel.isa or kernel.backend for kernel in kernels]
    code, count = kernels[0].code, QUICK_WORDS if quick else WORDS
    rng = np.random.default_rng(1)
    words = kernels[0].encode(rng.integers(0, 256, (count, code.data_bytes), np.uint8))
    bits = np.unpackbits(words, axis=1, bitorder="little")
    bench = Bench([], machine(1))

    def measure(what: str, calls: list[list[Callable[[], object]]], note: str = "") -> None:
        progress(what)
        samples: list[list[float]] = [[] for _ in kernels]
        for word in calls:
            for times, call in zip(samples, word, strict=True):
                call()
                times.append(timed(call, 1 if quick else 20) * 1e6)
        widest = statistics.median(samples[0])
        for name, times in zip(names, samples, strict=True):
            value = statistics.median(times)
            anchor, ratio = (names[0], value / widest) if name != names[0] else ("itself", 1.0)
            if what.startswith(f"hard, RBER {TARGET_RATE:g}") and name == "avx512":
                anchor, ratio = f"target {TARGET_US:g} us", value / TARGET_US
            row = Row(f"{what}, {name}{note}", float(f"{value:.4g}"), "us", anchor, round(ratio, 4))
            bench.rows.append(row)

    def each(rows: np.ndarray, function: str) -> list[list[Callable[[], object]]]:
        return [
            [lambda k=kernel, r=row: getattr(k, function)(r) for kernel in kernels] for row in rows
        ]  # fmt: skip

    measure("encode", each(words[:, : code.data_bytes], "encode"))
    for rate in RATES:
        errors = np.packbits(rng.random(bits.shape) < rate, axis=1, bitorder="little")
        done = kernels[0].decode(words ^ errors)
        note = f" ({done.iterations.mean():.1f} iterations, {done.flips.mean():.1f} rounds)"
        measure(f"hard, RBER {rate:g}", each(words ^ errors, "decode"), note)
    probabilities, messages = intervals(SOFT, 3)
    read = messages[rng.choice(probabilities.size, bits.shape, p=probabilities)]
    read = np.where(bits == 1, -read, read)
    done = kernels[0].decode_soft(read)
    note = f" ({done.iterations.mean():.1f} iterations)"
    measure(f"three reads, RBER {SOFT:g}", each(read, "decode_soft"), note)
    bench.remarks.append(
        f"LDPC: {code.data_bytes} bytes in {code.word_bytes}, rate {code.rate:.4f}, "
        f"{code.columns} columns of {code.circulant} bits, girth {code.girth}"
    )
    return bench
