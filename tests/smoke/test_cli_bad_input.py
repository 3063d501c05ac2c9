"""Does every kind of bad input end in one line, exit code 2, and nothing written?"""

import itertools
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import click
import h5py
import numpy as np
import pytest

from ondie.emu import validate
from ondie.emu.analysis import compare
from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.cli import main as cli
from ondie.emu.config.config import load_preset, preset_names
from ondie.emu.config.loader import PRESETS
from ondie.emu.files import write_atomically
from ondie.emu.units import InputError
from ondie.traces import TraceError, hdf5, textfile, write
from tests.smoke.commands import BY_SMALL, Outcome, files, here, refused, small_for
from tests.traces.samples import sample, sample_file

ALL_PATHS = ",".join(PATHS)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMPARE = [
    # traces
    (["missing.h5"], ["missing.h5", "no such file"]),
    (["no/such.h5"], ["no/such.h5", "no such file"]),
    (["gpt-smal"], ["gpt-smal", "'gpt-small'"]),
    (["gpt-10B"], ["gpt-10B", "'gpt-10b'"]),
    ([""], ["neither"]),
    (["a\nb"], [r"a\nb"]),
    # devices
    (["gpt-small", "--device", "newprot"], ['"newprot"', "nearest: newport"]),
    (["gpt-small", "--device", "mine.toml"], ["mine.toml", "no such file"]),
    (["gpt-small", "--devices", "0"], ["system.devices", '"0"', "must be at least 1"]),
    (["gpt-small", "--devices", "-1"], ["system.devices", '"-1"', "too small"]),
    (["gpt-small", "--devices", "99999999"], ["system.devices", '"99999999"', "at most"]),
    (["gpt-small", "--devices", str(2**70)], ["system.devices", str(2**70), "too large"]),
    (["gpt-small", "--devices", "many"], ["--devices", "'many'"]),
    (["gpt-small", "--devices", "2", "--set", "system.devices=2"], ["system.devices", "twice"]),
    # keys, units, sizes
    (["gpt-small", "--set", "flash.t_reed=1 us"], ["flash.t_reed", "nearest: flash.t_read"]),
    (["gpt-small", "--set", "flash.t_read"], ["flash.t_read", "no value"]),
    (["gpt-small", "--set", "flash.t_read=45"], ["flash.t_read", '"45"', "no unit"]),
    (["gpt-small", "--set", "flash.t_read=45 uus"], ["flash.t_read", '"uus"', "nearest: us"]),
    (["gpt-small", "--set", "flash.page=-4 KiB"], ["flash.page", '"-4 KiB"', "too small"]),
    (["gpt-small", "--set", "flash.page=1e30 GB"], ["flash.page", "too large"]),
    (["gpt-small", "--set", "flash.channels=-8"], ["flash.channels", '"-8"', "too small"]),
    (["gpt-small", "--set", "flash.channels=1e15"], ["flash.channels", '"1e15"', "overflows"]),
    (["gpt-small", "--set", "dram.capacity=-1 B"], ["dram.capacity", "too small"]),
    (["gpt-small", "--set", "host.subgroup_params=-1"], ["host.subgroup_params", "too small"]),
    (["gpt-small", "--set", f"host.subgroup_params={2**64}"], ["subgroup_params", "too large"]),
    # steps, paths, options
    (["gpt-small", "--steps", "0"], ["--steps 0", "1 to"]),
    (["gpt-small", "--steps", "-3"], ["--steps -3", "1 to"]),
    (["gpt-small", "--steps", "9999"], ["--steps 9999", "1 to"]),
    (["gpt-small", "--steps", "1.5"], ["--steps", "1.5"]),
    (["gpt-small", "--paths", ""], ["--paths ''", "a name is empty"]),
    (["gpt-small", "--paths", "on_die,,host_offload"], ["--paths", "a name is empty"]),
    (["gpt-small", "--paths", "a,,b"], ["--paths", "a name is empty"]),
    (["gpt-small", "--paths", ","], ["--paths", "a name is empty"]),
    (["gpt-small", "--paths", "on_dye"], ["'on_dye'", "nearest: on_die"]),
    (["gpt-small", "--paths", "host_offload,xyz"], ["'xyz'", "host_offload", "stannis"]),
    (["gpt-small", "--form", "torsh"], ["--form", "'torsh'", "'torch'"]),
    (["gpt-small", "--weights-up", "fp8"], ["--weights-up", "'fp8'", "'fp16'"]),
    (["gpt-small", "--seed", "-1"], ["--seed", "-1"]),
    (["gpt-small", "--swings"], ["--swings", "'--swing'"]),
    # the accelerator, and the cluster, also where no path of a cluster is asked for
    (["gpt-small", "--step-times", "acc"], ["--step-times", "'acc'", "'accelerator', 'trace'"]),
    (["gpt-small", "--step-times", "accelerator"],
     ["optimstore-r1 does not state an accelerator rate"]),
    (["gpt-small", "--batch", "papr"], ["--batch", "'papr'", "'paper'"]),
    (["gpt-small", "--cores-taken", "-1"], ["--cores-taken -1", "at least 0 and less than"]),
    (["gpt-small", "--cores-taken", "8", "--paths", "on_die"], ["--cores-taken 8", "8 cores"]),
    (["gpt-small", "--cores-taken", "nan"], ["--cores-taken nan"]),
    (["gpt-small", "--cores-taken", "some"], ["--cores-taken", "'some'"]),
    (["gpt-small", "--slowdown", "line", "--paths", "on_die"], ["slowdown", "nearest: linear"]),
    (["gpt-small", "--slowdown", ""], ['slowdown = ""', "laguna-host"]),
    (["gpt-small", "--host-batch", "3", "--paths", "on_die"],
     ["--host-batch 3", "applies only to training on a cluster"]),
    (["gpt-small", "--drive-batch", "0", "--paths", "on_die"], ["--drive-batch 0", "from 1 to"]),
    (["gpt-small", "--no-swing=yes"], ["--no-swing", "does not take a value"]),
    (["gpt-small", "--verbose=2"], ["--verbose", "does not take a value"]),
    (["gpt-small", "--verbos"], ["'--verbos'", "'--verbose'"]),
    # processing elements that the drive does not have, in part
    (["gpt-small", "--device", "newport", "--set", "pe.kind=per_plane", "--set", "pe.bus_values=2"],
     ["pe.kind", "set all of them", "pe.clock_divider = 4", "energy.pe_add", "energy.register"]),
    (["gpt-small", "--device", "gen4-tlc", "--set", "pe.rain=4"],
     ['pe.rain = "4"', "set all of them", 'pe.kind = "per_plane"', "energy.pe_multiply"]),
    (["gpt-small", "--device", "smartssd", "--set", "energy.pe_add=1 pJ", "--paths", "on_die"],
     ["on_die", "pe.kind = none"]),
    # what does not fit, or cannot run
    (["gpt3-175b", "--paths", ALL_PATHS], ["host_offload", "174,604,259,328", "per device"]),
    (["gpt3-175b", "--paths", "in_storage"], ["in_storage", "conventional namespace"]),
    (["gpt3-175b", "--paths", "on_die"], ["on_die", "reservoir"]),
    (["gpt3-175b"], ["no path can run gpt3-175b on optimstore-r1", "host_offload: ", "on_die: "]),
    (["gpt-small", "--device", "newport", "--paths", "on_die"], ["on_die", "pe.kind = none"]),
    (["gpt-small", "--device", "newport", "--paths", "host_offload,on_die"], ["pe.kind = none"]),
    (["gpt-small", "--paths", "stannis"], ["stannis", "isp.kind = fpga"]),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), COMPARE, ids=lambda x: " ".join(x)[:60])
def test_compare(folder, capsys, arguments, words):
    refused(here(capsys, "compare", *arguments, "--out", "out"), *words)
    assert files(folder) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compar"], ["'compar'", "'compare'"]),
        (["xyz"], ["'xyz'"]),
        (["preset", "sow", "newport"], ["'sow'", "'show'"]),
        (["trace", "inf"], ["'inf'", "'info'"]),
        (["bench", "kernel"], ["'kernel'", "'kernels'"]),
        (["compare"], ["TRACE"]),
        (["compare", "gpt-small", "too", "many"], ["too"]),
        (["preset", "show"], ["NAME"]),
        (["preset", "show", "newprot"], ['"newprot"', "newport"]),
        (["preset", "show", "newport", "--set", "flash.pages=1"], ["flash.pages", "flash.page"]),
        (["preset", "diff", "newport", "lagunna"], ['"lagunna"', "nearest: laguna"]),
        (["trace", "info", "missing.h5"], ["missing.h5", "no such file"]),
        (["trace", "info", "gtp-small"], ["gtp-small", "gpt-small"]),
        (["validate", "closed-form"], ["validate closed-form:", "nearest: closed-forms"]),
        (["validate", "xyz", "--json", "rows.json"], ["validate xyz:", "use one of bytes"]),
        (["bench", "kernels", "--size", "0"], ["--size", "0"]),
        (["bench", "kernels", "--threads", "-1"], ["--threads", "-1"]),
        (["--verbose"], ["--verbose"]),
    ],
    ids=lambda x: " ".join(x)[:60],
)
def test_other_commands(folder, capsys, arguments, words):
    refused(here(capsys, *arguments), *words)
    assert files(folder) == []


NO_COUNTS = ["1_000", " 1", "1 ", "\u0661", "1e3", "0x10", "", "+", "9" * 5000 + "_"]
"""Not written in digits; Python's int() takes some of them."""


def options_of(command, name=""):
    """Yield (name, option) of all commands below ``command``."""
    for each in command.params:
        yield f"{name} {each.opts[0]}", each
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            yield from options_of(command.get_command(context, word), f"{name} {word}")


def test_counts_are_in_digits():
    """Of every option of every command that takes a whole number."""
    found = {
        name: option for name, option in options_of(cli.commands)
        if isinstance(option.type, click.types.IntParamType)
    }  # fmt: skip
    assert len(found) > 40 and " serve --states" in found and " replay --queue-depth" in found
    for name, option in found.items():
        assert option.type.convert("24", option, None) == 24, name
        for text in NO_COUNTS:
            with pytest.raises(click.BadParameter, match="write a whole number in digits"):
                option.type.convert(text, option, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--nvme-tcp", ":0", "--states", "1_000"], ["--states", "'1_000'", "digits"]),
        (["study", "formats", "--seeds", "1,2_0"], ["1,2_0", "use integers"]),
        (
            ["stannis", "tune", "mobilenetv2", "--drives", "newport=2_4"],
            ["newport=2_4", "a preset and a number"],
        ),
        (["stannis", "simulate", "mobilenetv2", "--private", "1_0"], ["--private '1_0'"]),
        (["compare", "gpt-small", "--offload", "threads=1_0"], ["threads=1_0", "a whole number"]),
    ],
    ids=lambda x: " ".join(x)[:60],
)
def test_counts_in_texts_are_in_digits(folder, capsys, arguments, words):
    refused(here(capsys, *arguments), *words)
    assert files(folder) == []


def test_each_name_in_a_message_is_suggested_once(capsys):
    assert refused(here(capsys, "compar", "gpt-small")).count("'compare'") == 1


# --- traces that are damaged


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def not_hdf5(path: Path) -> None:
    path.write_bytes(b"name,shape\n" * 1000)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_version(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["schema"] = 2


def nan_gradient(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["gradients/1/values"][14] = np.nan  # element 2 of tensor b, which starts at 12


def infinite_gradient(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["gradients/2/values"][0] = np.inf


def changed_gradient(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["gradients/0/values"][5] += 1


def negative_size(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["tensors/size"][0] = -12


def overflowing_shape(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["tensors/shape"][0] = [2**62, 2**62]


def endless_forward(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["steps/forward_s"][1] = 1e300


DAMAGE = [
    (truncated, ["HDF5"]),
    (
        not_hdf5,
        ["HDF5", "a .h5 file that `ondie record` wrote, or a name that `ondie trace info` lists"],
    ),
    (empty, ["HDF5"]),
    (other_version, ["schema", "2", "must be 1, the version"]),
    (nan_gradient, ["step 1", "'b'", "element 2", "nan"]),
    (infinite_gradient, ["step 2", "'a'", "inf"]),
    (changed_gradient, ["step 0", "sha256"]),
    (negative_size, ["'a'", "-12"]),
    (overflowing_shape, ["'a'", "size"]),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGE, ids=[d.__name__ for d, _ in DAMAGE])
def test_damaged_traces(folder, capsys, damage, words):
    path = sample_file(folder, "run.h5")
    damage(path)
    refused(here(capsys, "compare", "run.h5", "--out", "out", "--no-swing"), "run.h5", *words)
    assert files(folder) == ["run.h5"]


def test_the_same_trace_undamaged_runs(folder, capsys):
    sample_file(folder, "run.h5")
    words = ["compare", "run.h5", "--out", "out", "--steps", "2", "--no-swing", *BY_SMALL]
    assert here(capsys, *words).code == 0
    assert "out/result.json" in files(folder)


def test_a_trace_longer_than_the_clock(folder, capsys):
    endless_forward(sample_file(folder, "run.h5"))
    line = refused(here(capsys, "compare", "run.h5", "--out", "out"), "1e+300 s", "the limit is")
    assert "sample" in line
    assert files(folder) == ["run.h5"]


def test_an_optimizer_without_a_kernel(folder, capsys):
    write(folder / "run.h5", sample(op="other"))
    refused(
        here(capsys, "compare", "run.h5", "--out", "out"), "run.h5", "'other'", "no update kernel"
    )
    assert files(folder) == ["run.h5"]


# --- configurations in files


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[flash\n", ["not TOML"]),
        (b"\xff\xfe", ["UTF-8"]),
        ("", ["missing"]),
        ('base = "newprot"\n', ["newport"]),
        ('base = "newport"\n[flash]\nt_reed = 1\n', ["flash.t_reed", "flash.t_read"]),
        ('base = "newport"\n[flash]\nt_read = "45 us"\n', ["flash.t_read", "source"]),
    ],
)
def test_preset_files(folder, capsys, content, words):
    data = content if isinstance(content, bytes) else content.encode()
    (folder / "mine.toml").write_bytes(data)
    for arguments in (["compare", "gpt-small", "--device"], ["preset", "show"]):
        refused(here(capsys, *arguments, "mine.toml"), "mine.toml", *words)
    assert files(folder) == ["mine.toml"]


def test_a_preset_that_lost_a_leaf(folder, capsys):
    text = (PRESETS / "newport.toml").read_text("utf-8")
    line = next(x for x in text.splitlines() if x.startswith("t_read "))
    (folder / "mine.toml").write_text(text.replace(line + "\n", ""), "utf-8")
    refused(here(capsys, "compare", "gpt-small", "--device", "mine.toml"), "flash.t_read")


# --- places that cannot be written


def quick(*arguments: str) -> list[str]:
    """The shortest comparison that writes something."""
    return ["compare", "mlp-fp16", "--steps", "1", "--no-swing", "--quiet",
            "--paths", "host_offload", *BY_SMALL, *arguments]  # fmt: skip


@pytest.mark.parametrize("out", ["taken", "taken/deeper/still"])
def test_a_file_where_the_folder_should_be(folder, capsys, out):
    (folder / "taken").write_text("mine")
    refused(here(capsys, *quick("--out", out)), "taken", "not a folder")
    assert (folder / "taken").read_text() == "mine"
    assert files(folder) == ["taken"]


@pytest.mark.parametrize("name", ["result.json", "figure.png", "figure.pdf", "line.json"])
def test_a_folder_where_a_file_should_be(folder, capsys, name):
    (folder / "out" / name).mkdir(parents=True)
    words = quick("--out", "out", "--timeline", "out/line.json")
    refused(here(capsys, *words), f"out/{name}", "folder")
    assert files(folder) == ["out", f"out/{name}"]


def test_a_folder_without_permission(folder, capsys, monkeypatch):
    (folder / "locked").mkdir()
    real = os.access
    locked = folder / "locked"
    # Tests may run as root, who may write everywhere.
    monkeypatch.setattr(os, "access", lambda p, mode: Path(p).resolve() != locked and real(p, mode))
    refused(here(capsys, *quick("--out", "locked/deep")), "locked/deep/result.json", "permission")
    assert files(folder) == ["locked"]


def test_a_folder_is_not_standard_output(folder, capsys):
    refused(here(capsys, *quick("--out", "-")), "--out -: must be a folder", "--json -")
    assert files(folder) == []


def test_a_folder_in_which_even_root_may_not_write(folder, capsys):
    refused(here(capsys, *quick("--json", "/proc/ondie.json")), "/proc/ondie.json", "cannot be")


def test_bad_places_are_found_before_the_run(folder, capsys, monkeypatch):
    (folder / "taken").write_text("mine")
    monkeypatch.setattr(compare, "compare", lambda *a, **k: pytest.fail("ran"))
    refused(here(capsys, *quick("--out", "taken")), "taken")
    refused(here(capsys, *quick("--timeline", "taken/line.json")), "taken")


def test_a_device_is_written_to_and_not_replaced(folder, capsys):
    """A renamed file would take the place of /dev/null for the whole system, where root runs it."""
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    done = here(capsys, *quick("--json", "pipe"))
    assert done.code == 0, done.err
    text = os.read(reader, 1 << 20)
    os.close(reader)
    assert text.startswith(b"{") and stat.S_ISFIFO(os.stat(folder / "pipe").st_mode)
    assert files(folder) == ["pipe"]


def test_standard_output_keeps_what_is_in_its_file(folder):
    """`>> file`: the name leads to a file, which must not be replaced."""
    words = [sys.executable, "-m", "ondie.emu.cli", *quick("--json", "/dev/stdout")]
    (folder / "log").write_text("before\n")
    with open(folder / "log", "ab") as log:
        done = subprocess.run(words, stdout=log, timeout=60, check=False)
    text = (folder / "log").read_text()
    assert done.returncode == 0 and text.startswith("before\n{") and len(text) > 1000


def test_a_link_stays_and_its_target_is_written(folder, capsys):
    (folder / "there").mkdir()
    (folder / "link.json").symlink_to("there/real.json")
    done = here(capsys, *quick("--json", "link.json"))
    assert done.code == 0, done.err
    assert (folder / "link.json").is_symlink()
    assert (folder / "there" / "real.json").read_text().startswith("{")


@pytest.mark.parametrize("name", ["requests.csv", "requests.h5"])
def test_a_log_does_not_replace_a_fifo(folder, capsys, name):
    os.mkfifo(folder / name)
    refused(here(capsys, "replay", "mixed-4k", "--limit", "10", "--log", name),
            name, "is not a regular file")  # fmt: skip
    assert stat.S_ISFIFO(os.stat(folder / name).st_mode)


@pytest.mark.parametrize("name", ["run.h5", "requests.csv"])
def test_a_trace_does_not_replace_a_fifo(folder, name):
    os.mkfifo(folder / name)
    check = hdf5.check_target if name == "run.h5" else textfile.check_target
    with pytest.raises(TraceError, match=f"{name}: is a device or a FIFO"):
        check(folder / name)


def test_a_name_too_long(folder, capsys):
    refused(here(capsys, *quick("--out", "x" * 300)), "name too long")
    refused(here(capsys, *quick("--out", "x/" + "y" * 300)), "name too long")
    assert files(folder) == []


def test_a_timeline_in_place_of_the_result(folder, capsys):
    refused(
        here(capsys, *quick("--out", "out", "--timeline", "out/result.json")), "out/result.json"
    )
    assert files(folder) == []


def test_a_system_without_room_for_files(folder, capsys):
    """A file system that makes no folders, if there is one."""
    if not Path("/proc/self").is_dir():
        pytest.skip("no /proc")
    refused(here(capsys, *quick("--out", "/proc/nowhere")), "/proc/nowhere", "cannot be written")


def test_names_do_not_lead_out_of_the_results(folder, capsys):
    """The folder's name is made of the trace's and the system's, which may hold anything."""
    write(folder / "run.h5", sample(name="../../up"))
    here(capsys, "compare", "run.h5", "--steps", "1", "--no-swing", "--quiet",
         "--paths", "host_offload", "--set", "system.name=/a:b")  # fmt: skip
    found = [name for name in files(folder) if name.endswith("result.json")]
    assert found == ["results/.._.._up-_a_b/result.json"]


# --- what is interrupted or fails while writing


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("which", range(6))
def test_files_are_all_written_or_none(folder, monkeypatch, failure, which):
    """Fails at each staging and each renaming of two new files and one old one."""
    old = folder / "old"
    old.write_bytes(b"before")
    new = {old: b"after", folder / "a/b/one": b"1", folder / "a/two": b"2"}
    calls = itertools.count()
    chmod, replace = os.fchmod, os.replace

    def failing(call):
        def instead(*arguments):
            if next(calls) == which:
                raise failure
            call(*arguments)

        return instead

    monkeypatch.setattr(os, "fchmod", failing(chmod))
    monkeypatch.setattr(os, "replace", failing(replace))
    with pytest.raises((InputError, KeyboardInterrupt)):
        write_atomically(new)
    left = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert all(content in (b"before", new[p]) for p, content in left.items())
    if which < 3:  # while staging: as if nothing had been asked for
        assert files(folder) == ["old"] and old.read_bytes() == b"before"
    else:  # between two renames: some files new, each whole
        assert len(left) == which - 3 + (which == 3)
    monkeypatch.undo()
    write_atomically(new)
    assert {p: p.read_bytes() for p in new} == new


# --- as a user starts it


def test_the_installed_command(folder):
    """In a process of its own; `test_standard_output_keeps_what_is_in_its_file` has `python -m`."""
    nan_gradient(sample_file(folder, "nan.h5"))
    command = Path(sys.executable).with_name("ondie")
    if not command.exists():
        pytest.skip("not installed beside this Python")
    words = [command, "compare", "nan.h5", "--out", "out"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    refused(Outcome(done.returncode, done.stdout, done.stderr), "nan.h5", "step 1")
    assert files(folder) == ["nan.h5"]


def test_no_memory_is_one_line(folder, capsys, monkeypatch):
    def full(*arguments, **options):
        raise MemoryError("Unable to allocate 28.7 GiB")

    monkeypatch.setattr(compare, "run_path", full)
    refused(here(capsys, *quick("--out", "out")), "memory", "28.7 GiB")
    assert files(folder) == []


# --- every constant at the ends of what can be written

EXTREMES = """
import json, re, resource, signal, sys
from pathlib import Path
from ondie.emu.analysis.compare import compare
from ondie.emu.config.config import load_preset
from ondie.emu.units import InputError
from ondie.emu.validate import model

trace = model("adam", 20_000)
given = json.loads(sys.argv[1])
compare(trace, load_preset(given[0][0]), swing=False)
peak = int(re.search(r"VmPeak:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (peak + (8 << 30),) * 2)  # well before the machine's end
for preset, keys, values in given:
    base = load_preset(preset)
    for leaf in base.leaves():
        for value in values if leaf.key in keys else ():
            number = float(min(value, 2**40)) if isinstance(leaf.value, float) else value
            signal.alarm(300)  # ends the process: no size may keep it busy
            print(json.dumps([preset, leaf.key, value]), end=" ", flush=True)
            try:
                compare(trace, base.replace({leaf.key: number}), swing=False)
            except (InputError, MemoryError) as error:
                print("refused", ascii(str(error)))
            else:
                print("ran")
print("end")
"""


THOROUGH = "optimstore-r1"  # presets share most of their code
ALIKE = ("970-pro", "pm9a3", "7450", "7500", "laguna", "smartssd", "optimstore-r2")
"""Presets that use no mechanism beyond those of gen4-tlc, newport and optimstore-r1."""
DISTINCT = sorted({*preset_names()} - {*ALIKE})


def numbers(preset):
    """The keys of a preset's numbers."""
    leaves = load_preset(preset).leaves()
    return [leaf.key for leaf in leaves if not isinstance(leaf.value, (bool, str))]


def runs_or_is_refused(given, folder):
    """Each key of each (preset, keys, values) with each value: no traceback, no endless run."""
    done = subprocess.run(
        [sys.executable, "-c", EXTREMES, json.dumps(given)],
        capture_output=True, text=True, cwd=folder, timeout=850, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == "end", (done.stdout[-300:], done.stderr[-800:])
    assert len(lines) == 1 + sum(len(keys) * len(values) for _, keys, values in given)
    return sum(" refused " in line for line in lines)


def test_few_sizes_of_each_preset_end_in_no_defect(tmp_path):
    """0 and 2^62 for a few constants of a preset, others in each, in one process."""
    presets = preset_names()
    every = 16 * len(presets)
    given = [(name, numbers(name)[i::every], [0, 2**62]) for i, name in enumerate(presets)]
    assert runs_or_is_refused(given, tmp_path) > len(presets) // 2


@pytest.mark.parametrize("key", ["ftl.gc_window_pages", "cache.destage_pages"])
def test_more_pages_than_the_drive_has_are_all_of_them(key):
    """With several mapping units per page, whose number is a multiple of the pages."""
    cfg = load_preset("gen4-tlc", small_for("gen4-tlc"))
    many, all_of_them = (
        compare.compare(validate.model("adam", 1000), cfg.replace({key: pages}), swing=False)
        .results[0]
        .ledger
        for pages in (2**62, 2**20)
    )
    assert many is not None and many == all_of_them


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("preset", DISTINCT)
def test_no_size_ends_in_a_defect(preset, tmp_path):
    """Each constant of one preset at 0, 1, 2^31 and 2^63 - 1; of the others, half of them at 0 and
    half at 2^62, in turn."""
    keys, turn = numbers(preset), DISTINCT.index(preset) % 2
    given = [(preset, keys[turn::2], [0]), (preset, keys[1 - turn :: 2], [2**62])]
    if preset == THOROUGH:
        given = [(preset, keys, [0, 1, 2**31, 2**63 - 1])]
    assert runs_or_is_refused(given, tmp_path) > 8


def test_every_error_class_is_caught():
    """What a room raises for bad input is what the command line turns into a line."""
    from ondie.emu.units import InputError
    from ondie.kernels import KernelError
    from ondie.traces import TraceError

    for error in (InputError, KernelError, TraceError):
        assert issubclass(error, ValueError)
        assert error.__name__ in Path(cli.__file__).read_text("utf-8")
