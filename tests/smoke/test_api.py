"""`import importlib.util
import ondie`: is what a script gets what the command line prints, and are errors early?"""

import ast
import csv
import importlib.util
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest

import ondie
from ondie.emu.results.result import as_csv, rows_of
from ondie.emu.results.schema import NAME, load_schema, schema, text
from ondie.emu.units import InputError
from ondie.kernels import KernelError
from ondie.traces import TraceError
from tests.smoke.commands import here, small_for

PATHS = ["host_offload", "on_die"]
SMALL = small_for("gen4-tlc")


@pytest.fixture(scope="module")
def compared():
    return ondie.compare("mlp-fp16", "csd-pe", paths=PATHS, steps=2, swing=False)


@pytest.fixture(scope="module")
def replayed():
    return ondie.replay("mixed-4k", settings=SMALL, queue_depth=8, footprint="wrap")


def test_the_import_is_lazy():
    names = {"numpy", "scipy", "numba", "click", "rich"}
    code = f"import sys, ondie; print({names} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_every_name_is_there():
    """Without torch, only its optimizer is missing, and the error names torch."""
    for name in ondie.__all__:
        if name == "CSDOptimizer" and importlib.util.find_spec("torch") is None:
            with pytest.raises(ModuleNotFoundError, match="torch"):
                getattr(ondie, name)
        else:
            assert getattr(ondie, name) is not None, name
    assert set(ondie.__all__) <= set(dir(ondie))
    with pytest.raises(AttributeError, match="no attribute 'comparison'.*compare"):
        _ = ondie.comparison


def test_a_comparison_is_what_the_command_prints(compared, capsys, tmp_path):
    words = ["compare", "mlp-fp16", "--device", "csd-pe", "--paths", ",".join(PATHS), "--steps",
             "2", "--no-swing"]  # fmt: skip
    done = here(capsys, *words, "--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv")
    written = f"written: {tmp_path / 'a.json'}, {tmp_path / 'a.csv'}"
    printed = done.out.replace("\n", " ").split("written:")[0]
    assert done.code == 0 and printed.split() == str(compared).split()
    assert written.split()[0] in done.out
    assert compared.save(tmp_path / "b.json").read_bytes() == (tmp_path / "a.json").read_bytes()
    assert compared.save(tmp_path / "b.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()


def test_rows_of_a_comparison(compared):
    table = compared.to_pandas()
    assert list(table["strategy"]) == PATHS and table["reason"].isna().all()
    data = {path["name"]: path["metrics"] for path in compared.data["paths"]}
    for name in PATHS:
        row = table.set_index("strategy").loc[name]
        assert row["step_s"] == data[name]["step_s"]["value"]
        assert row["waf"] == data[name]["waf"]["value"]
        assert row["all_j_per_sample_low"] < row["all_j_per_sample_typical"]
    assert table["samples_per_s"].to_numpy() * table["step_s"].to_numpy() == pytest.approx(64)


def test_a_strategy_that_cannot_run_has_its_reason():
    found = ondie.compare("mlp-fp16", "gen4-tlc", steps=1, swing=False).to_pandas()
    reasons = found.set_index("strategy")["reason"]
    assert "no processing elements" in reasons["on_die"] and pandas.isna(reasons["host_offload"])


def test_a_replay_is_what_the_command_writes(replayed, capsys, tmp_path):
    sets = [word for setting in SMALL for word in ("--set", setting)]
    words = ["replay", "mixed-4k", *sets, "--queue-depth", 8, "--footprint", "wrap"]
    log, csv = tmp_path / "log.csv", tmp_path / "a.csv"
    done = here(capsys, *words, "--json", tmp_path / "a.json", "--csv", csv, "--log", log)
    assert done.code == 0
    data = json.loads((tmp_path / "a.json").read_text())
    own = ("wall_s", "peak_rss_bytes")
    same = {key: value for key, value in replayed.data.items() if key not in own}
    assert {key: value for key, value in data.items() if key not in own} == same
    assert csv.read_text() == as_csv(replayed.rows())
    table = replayed.to_pandas()
    assert len(table) == 10_000
    lines = [line.split(",") for line in log.read_text().splitlines()]
    assert lines[0] == list(table.columns)
    assert [str(value) for value in table.iloc[-1]] == lines[-1]
    latency = (table["end_ps"] - table["arrival_ps"]).mean() / 1e6
    assert latency == pytest.approx(data["latency_us"]["all"]["mean"])
    assert set(replayed.remarks) <= {line.removeprefix("ondie: ") for line in done.err.split("\n")}
    table_lines = str(replayed).split("wall time")[0]
    assert table_lines.split() == done.out.split("wall time")[0].split()


def test_a_notebook_shows_the_tables(compared, replayed):
    for result in (compared, replayed):
        html = result._repr_html_()
        assert html.startswith("<pre") and "<script" not in html
    assert "on_die" in compared._repr_html_() and "p99.9" in replayed._repr_html_()
    file = io.StringIO()
    from rich.console import Console

    Console(file=file, width=80).print(compared.table())
    assert "on_die" in file.getvalue()
    assert repr(compared) == "<ComparisonResult: print() shows it, .data is its JSON document>"


def test_loading(compared, tmp_path):
    assert ondie.load("mlp-fp16").n_params == 59_370
    requests = ondie.load("mixed-4k")
    assert len(requests) == 10_000 and set(np.unique(requests.size)) == {4096}
    assert 0.68 < (requests.op == 0).mean() < 0.72
    saved = ondie.load(compared.save(tmp_path / "a.json"))
    assert saved.data == json.loads((tmp_path / "a.json").read_text())
    assert saved.rows() == compared.rows()
    mqsim = tmp_path / "a.trace"
    mqsim.write_text("0 0 8 8 1\n")
    assert len(ondie.load(mqsim, "mqsim", time_unit="ns")) == 1
    assert ondie.preset("csd-pe", ["flash.channels=4"]).flash.channels == 4


def untimed():
    """The sample without its timestamps."""
    trace = ondie.load("mixed-4k")
    return replace(trace, timed=False, arrival_ps=np.zeros(len(trace), np.int64))


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: ondie.compare("mlp-fp17"), TraceError, "nearest: 'mlp-fp16'"),
        (lambda: ondie.compare("mlp-fp16", "csd-pee"), InputError, "csd-pe"),
        (lambda: ondie.compare("mlp-fp16", paths=["on_dye"]), InputError, "on_die"),
        (lambda: ondie.compare("mlp-fp16", settings="flash.channels=4"), InputError, "a list"),
        (lambda: ondie.compare("mlp-fp16", ondie.preset("csd-pe"), devices=2), InputError,
         "Config.replace"),
        (lambda: ondie.compare("mlp-fp16", target_step="2 parsecs"), InputError, "parsecs"),
        (lambda: ondie.Drive("gen5-tlc"), InputError, "gen4-tlc"),
        (lambda: ondie.Options(format="fp8"), InputError, "fp8"),
        (lambda: ondie.replay("mixed-4k", precondition="ful"), InputError, "nearest: fill"),
        (lambda: ondie.replay("mixed-4k", queue_depth=0), InputError, "from 1 to 65535"),
        (lambda: ondie.replay("mixed-4k", queue_depth=4, speed=2.0), InputError, "no effect"),
        (lambda: ondie.replay(untimed(), speed=2.0), InputError, "has no timestamps"),
        (lambda: ondie.replay("a.log"), TraceError, "state its format"),
        (lambda: ondie.load("a.json"), InputError, "cannot be read"),
        (lambda: ondie.load("mlp-fp16", wait="manual"), InputError, "can be used only with format"),
        (lambda: ondie.preset("csd-pe", ["flash.chanels=4"]), InputError, "flash.channels"),
        (lambda: ondie.preset("csd-pe").save, AttributeError, "save"),
    ],
)  # fmt: skip
def test_wrong_choices_fail_at_once(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_the_optimizer_refuses_its_drive_when_constructed():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    model = torch.nn.Linear(4, 3)
    hyper = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}
    for options, error, words in (
        ({"device": "newport", "path": "on_die"}, InputError, "no processing elements"),
        ({"device": "gen4-tlc", "path": "in_storage"}, InputError, "no in-storage processor"),
        ({"device": "csd-pe", "format": "bf16_all"}, InputError, "pe.narrow_values"),
        ({"device": "csd-pe", "path": "stannis"}, InputError, "use one of"),
        ({"device": "csd-pe", "backend": "numpy"}, KernelError, "backend"),
    ):
        with pytest.raises(error, match=words):
            ondie.CSDOptimizer(model.parameters(), "adam", **options, **hyper)


def test_saving(compared, tmp_path):
    taken = tmp_path / "a.json"
    taken.touch()
    with pytest.raises(InputError, match=r"\.json or \.csv"):
        compared.save(tmp_path / "a.xlsx")
    with pytest.raises(InputError, match="cannot be written"):
        compared.save(taken / "b.json")
    assert list(tmp_path.iterdir()) == [taken]


def test_rows_and_csv():
    assert rows_of([{"a": {"b": 1}, "c": [1, 2]}, {"d": None}]) == [
        {"a.b": 1, "c": "[1, 2]"}, {"d": None},
    ]  # fmt: skip
    assert rows_of({"rows": [{"a": 1}], "x": 2}) == [{"a": 1}]
    assert rows_of('{"a": {"b": 2}}') == [{"key": "a.b", "value": 2}]
    assert as_csv([{"a": 'x,"y', "b": None}, {"c": 1.5}]) == 'a,b,c\n"x,""y",,\n,,1.5\n'


def test_one_output_for_both_is_refused(capsys):
    done = here(capsys, "preset", "list", "--json", "-", "--csv", "-")
    assert done.code == 2 and "both write to standard output" in done.err
    done = here(capsys, "preset", "list", "--csv", "--quiet")
    assert done.code == 2 and "--csv takes a file, or - for standard output" in done.err
    done = here(capsys, "preset", "list", "--csv", "-")
    assert done.out.startswith("name,capacity,") and "csd-pe," in done.out and not done.err


def test_the_schema_is_that_of_the_keys(root):
    assert (root / "emu" / "results" / NAME).read_text("utf-8") == text()
    assert load_schema() == schema()


def test_results_follow_the_schema(compared):
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft202012Validator(load_schema())
    check.check_schema(load_schema())
    document = json.loads(json.dumps(compared.data))
    check.validate(document)
    for change in (
        lambda d: d.pop("paths"),
        lambda d: d.update(extra=1),
        lambda d: d["paths"][0]["metrics"]["step_s"].update(unit="ms"),
        lambda d: d["paths"][0]["metrics"]["step_s"].update(value="fast"),
        lambda d: d["paths"][0]["phases_s"].update(update="long"),
    ):
        wrong = json.loads(json.dumps(document))
        change(wrong)
        assert not check.is_valid(wrong)


USER = """
import ondie

result: ondie.ComparisonResult = ondie.compare("gpt2-124m", "csd-pe", swing=False)
fast: float = result.answer.strategies[0].step_s
cfg: ondie.Config = ondie.preset("csd-pe", ["flash.channels=8"])
drive = ondie.Drive(cfg)
for row in ondie.replay("mixed-4k", cfg, queue_depth=4).rows():
    print(row["kind"])
with ondie.Drive("gen4-tlc", payload=True) as served, ondie.Service(served) as service:
    try:
        served.flush()
    except ondie.CommandError as error:
        status: ondie.Status = error.status
"""


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_type_checkers_see_it(root, tmp_path):
    """mypy --strict on a user's script, and one with a mistake."""
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(USER)
    wrong.write_text(USER + 'ondie.replay("mixed-4k", queue_depth="4")\n')
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
               "--cache-dir", str(root / ".mypy_cache" / "strict"), "--explicit-package-bases",
               str(right), str(wrong)]  # fmt: skip
    env = {"MYPYPATH": str(root / ".venv" / "typing"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1 and errors[0].startswith("wrong.py"), done.stdout
    assert 'incompatible type "str"' in errors[0]


def test_ondie_has_one_home(root):
    """The package `ondie` is emu/api; importing it as a room of emu would make a second one."""
    assert Path(ondie.__file__).parent.resolve() == (root / "emu" / "api").resolve()
    imported = re.compile(
        r"^\s*(?:from|import) ondie\.emu\.api|^\s*from ondie\.emu import .*\bapi\b", re.M
    )
    for folder in ("emu", "kernels", "traces", "tests"):
        for path in (root / folder).rglob("*.py"):
            assert not imported.search(path.read_text("utf-8")), path


def test_what_type_checkers_see_is_what_there_is(root):
    """The names imported for type checkers are those of the table that is used."""
    text = (root / "emu" / "api" / "__init__.py").read_text("utf-8")
    (block,) = (
        node for node in ast.parse(text).body
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    )  # fmt: skip
    seen = {alias.asname for node in ast.walk(block) if isinstance(node, ast.ImportFrom)
            for alias in node.names if not str(alias.asname).startswith("_")}  # fmt: skip
    seen |= {target.id for node in ast.walk(block) if isinstance(node, ast.Assign)
             for target in node.targets if isinstance(target, ast.Name)}  # fmt: skip
    assert seen == set(ondie.__all__)


def test_the_keys_of_a_preset_are_rows(capsys):
    done = here(capsys, "preset", "show", "csd-pe", "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    by_key = {row["key"]: row for row in rows}
    assert len(by_key) == len(rows) > 200
    found = by_key["flash.t_program"]
    assert int(found["value"]) == ondie.preset("csd-pe").flash.t_program_ps
    assert (found["source"], found["unit"]) == ("paper", "ps")
    assert int(found["low"]) < int(found["value"]) < int(found["high"])
