"""Do the commands that look at presets and traces say what is so, and does each have a help?"""

import ast
import itertools
import json
import re
import subprocess
import sys

import click
import pytest

from ondie import traces
from ondie.emu.cli.main import commands
from ondie.emu.config.config import diff, load_preset, preset_names, shown
from ondie.emu.nand.constraints import timing_rows
from ondie.emu.units import fmt_bytes
from tests.smoke.commands import BY_SMALL, NO_COMPILER, apart, files, here, refused


def members(command) -> dict[str, click.Command]:
    """The commands of a group by name; none of a command that is no group."""
    if not isinstance(command, click.Group):
        return {}
    return {name: command.get_command(None, name) for name in command.list_commands(None)}


def tree(group=commands, names=()):
    """Every command and group with the words that call it."""
    yield list(names), group
    for name, command in members(group).items():
        yield from tree(command, (*names, name))


TREE = list(tree())


def rows(out: str) -> dict[str, list[str]]:
    """A table's rows by first cell, cells that run over several lines joined."""
    found: dict[str, list[str]] = {}
    last = ""
    for line in out.splitlines():
        if not line.startswith("│"):
            continue
        first, *cells = [cell.strip() for cell in line.strip("│").split("│")]
        if first:
            last = first
            found[last] = cells
        else:
            found[last] = [f"{a} {b}".strip() for a, b in zip(found[last], cells, strict=True)]
    return found


# --- help


@pytest.mark.parametrize(("names", "command"), TREE, ids=[" ".join(n) or "ondie" for n, _ in TREE])
def test_help(capsys, names, command):
    outcome = here(capsys, *names, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: {' '.join(['ondie', *names])} ")
    first = command.help.split(".")[0].split(":")[0]
    assert " ".join(first.split()) in " ".join(outcome.out.split())
    assert here(capsys, *names, "-h") == outcome
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in outcome.out
    for name in members(command):
        assert re.search(rf"^  {name} +\w", outcome.out, re.MULTILINE)


@pytest.mark.parametrize("names", [n for n, c in TREE if isinstance(c, click.Group)])
def test_a_group_alone_shows_its_help(capsys, names):
    assert here(capsys, *names) == here(capsys, *names, "--help")


def test_the_help_imports_no_heavy_module():
    """A list of commands takes a moment: what computes and draws is imported by the commands."""
    code = (
        "import sys\n"
        "from ondie.emu.cli import start\n"
        "sys.argv = ['ondie', '--help']\n"
        "try:\n    start()\n"
        "finally:\n    print(sorted(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "compare" in done.stdout, done.stderr
    loaded = set(ast.literal_eval(done.stderr))
    assert "ondie.emu.cli.main" in loaded
    assert not loaded & {"numba", "llvmlite", "numpy", "scipy", "h5py", "matplotlib", "torch"}


def test_an_interrupt_while_a_command_is_imported_is_one_line(capsys, monkeypatch):
    def interrupt(name):
        assert name == "ondie.emu.cli.commands.compare"
        raise KeyboardInterrupt

    monkeypatch.setattr("ondie.emu.cli.main.import_module", interrupt)
    outcome = here(capsys, "compare", "mlp-fp16")
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err.strip() == "ondie: interrupted; nothing was written"


def test_version(capsys):
    outcome = here(capsys, "--version")
    assert (outcome.code, outcome.err) == (0, "")
    assert re.fullmatch(r"ondie, version \d+\.\d+\.\d+\n", outcome.out)


def test_every_command_is_described():
    for names, command in TREE:
        assert command.help, names
        assert all(x.help for x in command.params if isinstance(x, click.Option)
                   and x.name not in ("threads", "weights_up")), names  # fmt: skip


# --- presets


def test_preset_list(capsys):
    outcome = here(capsys, "preset", "list")
    assert (outcome.code, outcome.err) == (0, "")
    found = rows(outcome.out)
    assert set(found) == set(preset_names())
    for name, cells in found.items():
        cfg = load_preset(name)
        assert cells[-2:] == [str(len(cfg.leaves())), str(len(cfg.assumed()))]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", preset_names())
def test_preset_show(capsys, name):
    cfg = load_preset(name)
    outcome = here(capsys, "preset", "show", name)
    assert (outcome.code, outcome.err) == (0, "")
    found = rows(outcome.out)
    assert list(found) == [leaf.key for leaf in cfg.leaves()]
    for leaf in cfg.leaves():
        assert found[leaf.key][0] == shown(leaf.value, leaf.unit)
        assert found[leaf.key][1]
    last = outcome.out.splitlines()[-1 if cfg.ftl.pslc == "off" else -2]
    assert last == f"{len(cfg.leaves())} constants, {len(cfg.assumed())} assumed"


@pytest.mark.one_in(5, start=1)
@pytest.mark.parametrize("name", preset_names())
def test_preset_show_why(capsys, name):
    """A source and a reference for every leaf, a range for every assumed one."""
    cfg = load_preset(name)
    found = rows(here(capsys, "preset", "show", name, "--why").out)
    assert list(found) == [leaf.key for leaf in cfg.leaves()]
    for leaf in cfg.leaves():
        value, span, source, reference = found[leaf.key]
        assert value and source == leaf.source
        assert reference.replace(" ", "") == leaf.ref.replace(" ", "")
        if leaf.source == "assumed":
            assert " .. " in span, leaf.key
        ends = [shown(leaf.low, leaf.unit), shown(leaf.high, leaf.unit)]
        assert span == (" .. ".join(ends) if leaf.low is not None else "")


def test_preset_show_json(capsys):
    cfg = load_preset("newport", ["flash.t_read=45 us"])
    words = ["preset", "show", "newport", "--json", "-", "--set", "flash.t_read=45 us"]
    data = json.loads(here(capsys, *words).out)
    assert data == cfg.resolved()
    assert data["flash"]["t_read"]["value"] == 45_000_000
    assert data["flash"]["t_read"]["source"] == "set"


@pytest.mark.parametrize(
    "words",
    [
        ("preset", "show", "newport", "--json"),
        ("preset", "show", "--json", "newport"),
        ("preset", "show", "newport", "--json", "--set", "flash.t_read=45 us"),
        ("trace", "info", "gpt-small", "--json"),
        ("trace", "info", "--json", "gpt-small"),
        ("validate", "--json"),
    ],
    ids=" ".join,
)
def test_json_without_a_value_names_the_new_spelling(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    refused(here(capsys, *words), "--json takes a file, or - for standard output: --json -")
    assert files(tmp_path) == []


def test_json_to_a_file_and_to_a_folder(capsys, tmp_path):
    """--json PATH, --json - and --out DIR hold the same document."""
    words = ("preset", "show", "newport")
    text = here(capsys, *words, "--json", "-", "--quiet").out
    outcome = here(capsys, *words, "--json", tmp_path / "a.json", "--out", tmp_path / "out")
    assert outcome.code == 0 and "written: " in outcome.out
    assert files(tmp_path) == ["a.json", "out", "out/result.json"]
    assert {(tmp_path / name).read_text() for name in ("a.json", "out/result.json")} == {text}
    same = (*words, "--json", tmp_path / "out/result.json", "--out", tmp_path / "out")
    refused(here(capsys, *same), "two options write this file")


def test_json_on_standard_output_leaves_the_tables_out(capsys):
    for words in (
        ("preset", "list"),
        ("preset", "diff", "newport", "laguna"),
        ("validate", "bytes"),
    ):
        data = json.loads(here(capsys, *words, "--json", "-").out)
        assert isinstance(data, list) and data


@pytest.mark.parametrize(("names", "command"), TREE, ids=[" ".join(n) or "ondie" for n, _ in TREE])
def test_results_have_one_convention(names, command):
    """A command with --json has --out and --quiet, and both options mean the same everywhere."""
    found = {opt: p for p in command.params for opt in p.opts}
    assert ("--json" in found) == ("--out" in found)
    if "--json" in found:
        assert found["--json"].metavar == "PATH|-" and found["--out"].metavar == "DIR"
        assert "--quiet" in found


def test_preset_show_of_a_file(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my [drive].toml"  # brackets are no markup
    path.write_text('base = "newport"\n[flash]\nchannels = { value = 4, source = "measured", '
                    'ref = "see [label] and :smile:" }\n')  # fmt: skip
    outcome = here(capsys, "preset", "show", path, "--why")
    assert rows(outcome.out)["flash.channels"] == ["4", "", "measured", "see [label] and :smile:"]
    words = here(capsys, "preset", "diff", "newport", "my [drive].toml").out
    assert "my [drive].toml" in words


@pytest.mark.parametrize("pair", [*itertools.pairwise(preset_names())], ids="-".join)
def test_preset_diff(capsys, pair):
    a, b = (load_preset(name) for name in pair)
    outcome = here(capsys, "preset", "diff", *pair)
    assert (outcome.code, outcome.err) == (0, "")
    found = rows(outcome.out)
    assert list(found) == [d.key for d in diff(a, b)]
    for key, cells in found.items():
        for cfg, cell in zip((a, b), cells, strict=True):
            known = cfg.records.get(key)
            assert cell == ("-" if known is None else shown(known.value, known.unit))


def test_a_preset_differs_in_nothing_from_itself(capsys):
    assert rows(here(capsys, "preset", "diff", "newport", "newport").out) == {}


# --- traces


def test_trace_info_without_a_name(capsys):
    outcome = here(capsys, "trace", "info")
    assert (outcome.code, outcome.err) == (0, "")
    words = set(re.split(r"[,:\s]+", outcome.out))
    known = traces.names()
    assert {*known, *known["recorded"], *known["synthetic"]} <= words


@pytest.mark.parametrize("name", ["gpt-small", "mlp-fp16", "gpt-10b", "squeezenet"])
def test_trace_info(capsys, name):
    trace = traces.load(name)
    found = rows(here(capsys, "trace", "info", name).out)
    assert found["payload"] == [trace.payload]
    assert found["timing source"] == [trace.timing_source]
    assert found["trainable parameters"] == [f"{trace.n_params:,}"]
    assert found["optimizer operation"] == [trace.op]
    assert found["SHA-256"] == [trace.sha256]
    assert found["steps"] == [str(len(trace.steps))]


def test_every_row_of_trace_info_has_a_name_of_its_own(capsys):
    lines = here(capsys, "trace", "info", "bert-large").out.splitlines()
    names = [name for line in lines if (name := line.strip("│").partition("│")[0].strip())]
    assert "attributes: time of the optimizer" in names and len(names) > 40
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["gpt-small", "gpt2-124m", "bert-large"])
def test_trace_info_json(capsys, name):
    data = json.loads(here(capsys, "trace", "info", name, "--json", "-").out)
    trace = traces.load(name)
    assert (data["params"], data["sha256"]) == (trace.n_params, trace.sha256)
    assert data["steps"] == len(trace.steps)
    assert data["payload"] == ("recorded" if name == "gpt-small" else "none")
    if name == "gpt-small":
        assert data["weights"] == ["initial", "final"]
        assert data["gradient_bytes"] > 0


def test_trace_info_of_a_file_is_that_of_its_name(capsys):
    by_name = here(capsys, "trace", "info", "mlp-fp16", "--json", "-").out
    assert here(capsys, "trace", "info", traces.DATA / "mlp-fp16.h5", "--json", "-").out == by_name


# --- record

SCRIPT = """
import sys

import torch

torch.manual_seed(3)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
for _ in range(int(sys.argv[1])):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained")
"""


def test_record_then_look_then_compare(capsys, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(NO_COMPILER + SCRIPT)
    words = ["record", "run.h5", "--steps", "3", "--", sys.executable, "train.py", "5"]
    outcome = apart(*words, cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert "trained" in outcome.out
    assert files(tmp_path) == ["run.h5", "train.py"]
    said = outcome.err.strip().splitlines()
    size = fmt_bytes((tmp_path / "run.h5").stat().st_size)
    assert said[-2] == (
        "ondie: wrote run.h5: 3 steps, 114 parameters in 4 tensors, adamw, gradients and weights, "
        f"{size}"
    )
    assert said[-1] == "ondie: next: ondie compare run.h5 --device csd-pe"
    before = (tmp_path / "run.h5").read_bytes()
    refused(here(capsys, *words), "run.h5: exists", "--force")
    assert (tmp_path / "run.h5").read_bytes() == before
    data = json.loads(here(capsys, "trace", "info", "run.h5", "--json", "-").out)
    # 4 x 16 + 16 + 16 x 2 + 2 = 114 parameters
    assert (data["params"], data["steps"], data["op"], data["form"]) == (114, 3, "adamw", "torch")
    outcome = here(capsys, "compare", "run.h5", "--out", "out", "--form", "torch", "--no-swing",
                   "--verbose")  # fmt: skip
    assert outcome.code == 0, outcome.err
    result = json.loads((tmp_path / "out/result.json").read_text())
    for path in result["paths"]:
        if path["status"] == "ok":
            assert path["weights"]["equal_bits_to_reference"] == 114
            # Tensors of 64, 16, 32 and 2 elements: all but the last 2 are whole vectors.
            assert path["weights"]["equal_bits_to_recorded_share"] >= 112 / 114
    assert "114 of 114" in outcome.out


@pytest.mark.parametrize("more", [("--skip", "3"), pytest.param((), marks=pytest.mark.soak)])
def test_record_refuses_an_optimizer_that_no_path_knows(tmp_path, more):
    """Before its first step, so that no training is done in vain."""
    pytest.importorskip("torch", reason="torch is not installed")
    text = SCRIPT.replace("AdamW(", "RMSprop(").replace(", fused=True", "")
    assert text != SCRIPT
    (tmp_path / "train.py").write_text(
        NO_COMPILER + text + "import pathlib\npathlib.Path('done').touch()\n"
    )
    words = ["record", "run.h5", *more, "--", sys.executable, "train.py", "5"]
    outcome = apart(*words, cwd=tmp_path)
    assert outcome.code == 2
    line = outcome.err.strip().splitlines()[-1]
    assert line.startswith("ondie: run.h5: no update path can replay this optimizer: torch.optim.R")
    assert "--any-optimizer" in line and files(tmp_path) == ["train.py"]


def test_record_without_a_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(here(capsys, "record", "run.h5"), "no command", "-- python train.py")
    refused(here(capsys, "record", "run.h5", "--", "echo", "5"), "echo")
    refused(here(capsys, "record", "no/run.h5", "--", sys.executable, "x.py"), "no/run.h5")
    assert files(tmp_path) == []


# --- quiet


def test_quiet_says_nothing(capsys, tmp_path):
    words = ["compare", "mlp-fp16", "--steps", "1", "--no-swing", "--quiet", "--out", tmp_path]
    outcome = here(capsys, *words, *BY_SMALL, "--paths", "host_offload")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert files(tmp_path) == ["figure.pdf", "figure.png", "result.json"]


def test_compare_writes_json_to_standard_output_only(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "mlp-fp16", "--steps", "1", "--no-swing", "--paths", "host_offload"]
    words += BY_SMALL
    outcome = here(capsys, *words, "--json", "-")
    assert (outcome.code, outcome.err) == (0, "") and files(tmp_path) == []
    data = json.loads(outcome.out)
    assert here(capsys, *words, "--quiet").code == 0
    (result,) = tmp_path.glob("results/*/result.json")
    assert json.loads(result.read_text()) == data


@pytest.mark.parametrize("name", preset_names())
def test_preset_timing(capsys, name):
    """The table has the constraints of the preset with its overrides, in order; --json their ps."""
    cfg = load_preset(name, ["flash.t_read=45 us"])
    words = ("preset", "timing", name, "--set", "flash.t_read=45 us")
    data = json.loads(here(capsys, *words, "--json", "-").out)
    known = timing_rows(cfg)
    assert [tuple(row["before"]) for row in data] == [row.before for row in known]
    assert [row["ps"] for row in data] == [row.ps for row in known]
    reads = [row for row in data if row["wait"] == "t_read"]
    assert reads and all(row["ps"] == 45_000_000 for row in reads)
    outcome = here(capsys, *words)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.count("45.0 us") >= len(reads)
