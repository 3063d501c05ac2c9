"""Does `ondie bench kernels --op bch,ldpc` measure what it says? Nothing here is timed."""

import sys
import types

import numpy as np
import pytest

from ondie.emu.cli.commands.bench_run import KernelBenchOptions, kernels_command
from ondie.emu.units import InputError
from ondie.kernels import bch, isas, native
from ondie.kernels.bench import codecs
from ondie.kernels.bench import run as bench
from ondie.kernels.bench.codecs import BchCase, LdpcCase
from ondie.kernels.crc import crc32c
from ondie.kernels.ldpc import CORRECT

SMALL = BchCase(10, 3, 40)
PLAIN = LdpcCase(100, 256, (0.0, 4e-3), (1e-2,), 8, (4e-3,))


class BCH:
    """A stand-in for bchlib: ours, word by word, with its interface."""

    asked: list[tuple[str, int]] = []

    def __init__(self, t, m):
        self.code = bch.get(m, t, SMALL.data_bytes, crc=False, backend="numba")

    def encode(self, data):
        self.asked.append(("encode", len(data)))
        words = np.frombuffer(data, np.uint8).copy()  # numba compiles read-only arrays anew
        return bytearray(self.code.encode(words).tobytes())

    def decode(self, data, check):
        rows = (np.frombuffer(data, np.uint8).copy(), np.frombuffer(check, np.uint8).copy())
        self.fixed, (count,) = rows, self.code.decode(*rows)
        self.asked.append(("decode", int(count)))
        return int(count)

    def correct(self, data, check):
        data[:], check[:] = (row.tobytes() for row in self.fixed)


@pytest.fixture
def other(monkeypatch):
    """bchlib is installed: a stand-in."""
    module = types.ModuleType(codecs.OTHER)
    module.BCH = BCH
    monkeypatch.setitem(sys.modules, codecs.OTHER, module)
    monkeypatch.setattr(codecs, "find_spec", lambda name: name == codecs.OTHER)
    monkeypatch.setattr(BCH, "asked", [])


@pytest.fixture
def alone(monkeypatch):
    """bchlib is not installed."""
    monkeypatch.setattr(codecs, "find_spec", lambda name: None)


def test_every_contender_does_the_work(other):
    operations = dict(SMALL.operations())
    wrong = [1, 3]
    assert list(operations) == ["encode", "clean check"] + [
        f"decode {count} wrong bit{'s' * (count > 1)}" for count in wrong
    ]
    names = [*(f"c, {isa}" for isa in reversed(isas())), "numba", codecs.OTHER]
    names = ["c, with CRC", *names] if native.lib is not None else names
    for contenders in operations.values():
        assert list(contenders) == names
    for name, call in operations["clean check"].items():
        assert name == codecs.OTHER or call().all()
    for count in wrong:
        for call in operations[f"decode {count} wrong bit{'s' * (count > 1)}"].values():
            for _ in range(2):  # on new copies each time
                assert list(call()) == [count] * codecs.WORDS
    BCH.asked.clear()
    operations["encode"][codecs.OTHER]()
    assert BCH.asked == [("encode", SMALL.data_bytes)] * codecs.WORDS


def test_every_contender_decodes_the_ldpc_words():
    """Encoding gives the words; of all that are read, those are found, except the clean ones with
    work. Messages are those of three reads."""
    operations = dict(PLAIN.operations())
    assert list(operations) == [
        "encode", "clean check", "decode at RBER 0.004", "decode three reads at RBER 0.01",
        "decode alone at RBER 0.004",
    ]  # fmt: skip
    alone = operations.pop("decode alone at RBER 0.004")
    for contenders in operations.values():
        assert list(contenders) == [*(f"c, {isa}" for isa in reversed(isas())), "numba"]
    for what, contenders in operations.items():
        for call in contenders.values():
            if what == "encode":
                assert (call() == PLAIN.words).all()
                continue
            done = call()
            assert (done.outcome == CORRECT).all() and (done.words == PLAIN.words).all()
            assert ((done.iterations + done.flips) > 0).any() == (what != "clean check")
    names = [codecs.CHECKSUM, *operations["encode"]]
    assert list(alone) == names  # the first is the anchor
    assert alone.pop(codecs.CHECKSUM)() == crc32c(PLAIN.words[:, :100].reshape(-1))
    for call in alone.values():
        for word, done in zip(PLAIN.words, call(), strict=True):
            assert (done.words == word).all() and done.outcome.tolist() == [CORRECT]


def test_messages_of_three_reads():
    """The wrong signs are as many as asked for, and most of them are weak."""
    case = LdpcCase(4096, 1024, (), (1e-2,), 8)
    bits = np.unpackbits(case.words, axis=1, bitorder="little")
    messages = case.messages(1e-2)
    wrong = (messages < 0) != (bits == 1)
    assert wrong.mean() == pytest.approx(1e-2, rel=0.1)
    assert (np.abs(messages[wrong]) == 3).mean() == pytest.approx(2 / 3, abs=0.05)
    assert set(np.unique(messages)) == {-15, -3, 3, 15}


def test_rows_are_relative_to_bchlib(other, monkeypatch):
    monkeypatch.setitem(codecs.CASES, "bch", (SMALL,))
    rows = bench._code(SMALL, 2, lambda what: None)
    label = "bch m=10 t=3 40 B encode, "
    assert {row.unit for row in rows} == {codecs.UNIT}
    assert all(row.value > 0 and row.ratio > 0 for row in rows)
    encode = {row.name.removeprefix(label): row for row in rows if row.name.startswith(label)}
    assert {row.anchor for row in encode.values()} == {label + codecs.OTHER}
    assert encode[codecs.OTHER].ratio == 1


def test_the_command(alone, monkeypatch, capsys):
    """Without bchlib, ratios are to the first contender; updates and codes have tables each."""
    monkeypatch.setitem(codecs.CASES, "bch", (SMALL,))
    monkeypatch.setattr(bench, "LEAST_S", 1e-5)
    real = bench.run_kernels
    monkeypatch.setattr(bench, "run_kernels", lambda *given, **more: real(*given, repeat=2, **more))
    kernels_command(KernelBenchOptions(ops=("bch",)))
    printed = capsys.readouterr().out
    assert "Time of error-correcting codes" in printed and "update kernels" not in printed
    assert "bch m=10 t=3 40 B decode 3 wrong bits" in printed and "numba" in printed
    kernels_command(KernelBenchOptions(ops=("bch", "sgd"), sizes=(1000,)))
    printed = capsys.readouterr().out
    assert "Time of error-correcting codes" in printed and "update kernels" in printed
    monkeypatch.setitem(codecs.CASES, "ldpc", (PLAIN,))
    kernels_command(KernelBenchOptions(ops=("bch,ldpc",)))
    printed = capsys.readouterr().out
    assert (
        "bch m=10 t=3 40 B encode" in printed
        and "ldpc 100 B rate" in printed
        and "decode three reads at RBER 0.01" in printed
    )


def test_a_figure_needs_an_update(tmp_path):
    message = "--figure: the roofline cannot show error-correcting codes"
    with pytest.raises(InputError, match=message):
        kernels_command(KernelBenchOptions(ops=("bch",), figure=tmp_path / "roof.png"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "option, name",
    [
        ({"sizes": (7,)}, "--size"), ({"threads": 2}, "--threads"),
        ({"formats": ("fp16",)}, "--format"), ({"shapes": ("page",)}, "--shape"),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(option, name):
    with pytest.raises(InputError, match=f"{name}: has no effect on error-correcting codes"):
        kernels_command(KernelBenchOptions(ops=("bch,bch", "ldpc"), **option))
    KernelBenchOptions(ops=("bch", "adam"), **option).check_codes()


def test_each_operation_once():
    assert KernelBenchOptions(ops=("bch,adam", "bch")).all_ops() == ("bch", "adam")
