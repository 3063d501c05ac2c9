"""The generated blocks of README.md and docs/.

Owns finding, making and, run as a program on all pages or those named, rewriting the blocks;
test_docs.py compares them.
`<!-- counters -->` are the counters of a drive with their comments.
`<!-- counts: SUITES -->` is the number of rows of these suites by kind.
`<!-- output: COMMAND -->` is followed by a fenced block with what `ondie COMMAND` prints; numbers
behind `|` choose among the paragraphs of that output. `<!-- results -->` are the rows of
`ondie validate optimstore` with a tolerance,
`<!-- quirks -->` MQSim's deviations from its parameters,
`<!-- result keys -->` the keys of result.json, `<!-- config: SECTION -->` the keys of a section of
the configuration, `<!-- laws -->` the conservation laws, `<!-- help: COMMAND -->` what
`ondie COMMAND --help` prints, and `<!-- tour: RUN -->` a run of tour.py. `<!-- stages -->` is the
stage table of the engine, and `<!-- stages: WALK -->` a walk through it (stages.py).
`<!-- fields: CLASS -->` are the fields and properties of a class of RECORDS, with their docstrings.
`<!-- write amplification -->` is that of a simulated drive beside the theory's.
"""

import ast
import functools
import io
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from ondie.emu.analysis import result_keys
from ondie.emu.engine.core.counters import COUNTERS
from ondie.emu.replay.mqsim import quirks
from tests.docs import stages, tour

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"<!-- (?P<what>[^>]*?) -->\n```\n(?P<body>.*?)```\n", re.DOTALL)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(what, body) of each generated block."""
    for match in BLOCK.finditer(text):
        yield match["what"], match["body"]


def make(what: str) -> str:
    """The block as it should be."""
    if what == "results":
        return results()
    if what.startswith("counts: "):
        return counts(what.removeprefix("counts: ").split())
    if what == "quirks":
        return quirks_of_mqsim()
    if what == "result keys":
        return result_keys.describe()
    if what == "write amplification":
        return write_amplification()
    if what == "counters":
        return counters()
    if what == "laws":
        return conservation_laws()
    if what.startswith("config: "):
        return config_keys(what.removeprefix("config: "))
    if what.startswith("help: "):
        return command_help(what.removeprefix("help: ").split())
    if what.startswith("fields: "):
        return fields_of(what.removeprefix("fields: "))
    if what.startswith("tour: "):
        return {"write": tour.page_write, "gradient": tour.gradient}[what.removeprefix("tour: ")]()
    if what == "stages":
        return stages.table()
    if what.startswith("stages: "):
        return stages.walk(what.removeprefix("stages: "))
    command, _, chosen = what.removeprefix("output: ").partition(" | ")
    text = output(shlex.split(command))
    if chosen:
        paragraphs = text.split("\n\n")
        text = "\n\n".join(paragraphs[int(i)] for i in chosen.split())
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def output(arguments: list[str]) -> str:
    """What `ondie ARGUMENTS` prints for the commands shown, without the list of files written."""
    from ondie import traces
    from ondie.emu import validate
    from ondie.emu.analysis.answer import answer
    from ondie.emu.analysis.calibrate import fio_jobs
    from ondie.emu.cli.commands import ablation
    from ondie.emu.cli.console import WIDTH
    from ondie.emu.config.config import load_preset
    from ondie.emu.paths.base import Options
    from ondie.emu.results.datasheet import check_datasheet
    from ondie.emu.results.tables import answer as first_screen
    from ondie.emu.results.tables import compare as report
    from tests.suites import suite

    screen = Console(file=io.StringIO(), width=WIDTH, highlight=False)
    match arguments:
        case ["compare", trace, "--device", device, "--steps", steps, *more]:
            found = comparison(trace, device, int(steps), "--no-swing" not in more)
            if "--verbose" in more:
                report.show(found, screen)
            else:
                first_screen.show(found, answer(found), screen)
        case ["validate", *name]:
            validate.show(suite(*name), screen)
        case ["ablation", trace, "--device", device]:
            cfg = load_preset(device)
            loaded = traces.load(trace)
            ablation.print_tables(ablation.ablation(cfg, loaded, Options()), loaded, cfg, screen)
        case ["study", "on-die-bytes"]:
            from ondie.emu.studies.on_die_bytes import run_study
            from ondie.emu.studies.on_die_bytes_tables import show

            show(list(run_study(load_preset("optimstore-r1"))), screen)
        case ["preset", "check", name]:
            check_datasheet(name, load_preset(name)).show(screen)
        case ["calibrate", "--jobs", name]:
            print(fio_jobs.job_file(load_preset("gen4-tlc"), "gen4-tlc", name), file=screen.file)
        case ["stannis" | "ndpipe", *_]:
            words = [sys.executable, "-m", "ondie.emu.cli", *arguments]
            return subprocess.run(words, check=True, capture_output=True, text=True).stdout
        case _:
            raise ValueError(f"no way to show {arguments}")
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def config_keys(section: str) -> str:
    """Every key of a section: its unit or kind, least value or choices, and meaning."""
    from ondie.emu.config.schema.keys import KEYS

    lines = []
    for key in KEYS.values():
        if key.section != section:
            continue
        kind = key.unit or {bool: "true or false", str: "text"}.get(key.type, key.type.__name__)
        if key.spec.choices and len(key.spec.choices) <= 8:
            kind = ", ".join(key.spec.choices)
        elif key.spec.least:
            kind += f", at least {key.spec.least}"
        name = f"{key.name}.*" if key.table else key.name
        lines += [f"{name}: {kind}", *textwrap.wrap(key.spec.doc, 90, initial_indent="    ",
                                                    subsequent_indent="    ")]  # fmt: skip
    return "\n".join(lines) + "\n"


def counters() -> str:
    """The counters of a drive, one a line, with what their source says of them."""
    text = (ROOT / "emu" / "engine" / "core" / "counters.py").read_text()
    rows = re.findall(r'^    "(\w+)",(?:  # (.*))?$', text, re.MULTILINE)
    assert [name for name, _ in rows] == list(COUNTERS)
    return "".join(f"{name:<22}{said}".rstrip() + "\n" for name, said in rows)


def conservation_laws() -> str:
    """Every conservation law by group: its name, its places, its sides and its limits at a cut."""
    from ondie.emu.engine.core.conservation import LAW_GROUPS, TERMS

    wrap = functools.partial(textwrap.wrap, width=100, subsequent_indent="        ")
    lines = []
    for group, laws in LAW_GROUPS.items():
        lines += [group, ""]
        for law in laws:
            places = ", ".join(place.name.lower() for place in law.places)
            lines += [f"  {law.name} ({places})", *wrap(f"    {law.left} = {law.right}")]
            if law.most != "0":
                limits = law.most if law.least == law.most else f"{law.least} to {law.most}"
                lines += wrap(f"    at a cut: {limits}")
        lines.append("")
    lines += ["Terms", ""]
    for name, expression in TERMS.items():
        lines += wrap(f"  {name} = {expression}")
    return "\n".join(lines) + "\n"


RECORDS = {
    "Recovered": "emu/ftl/recovery.py",
    "HeldUp": "emu/nvme/power_loss_protection.py",
}
"""Classes of records that docs/ describes, and their files."""


def fields_of(name: str) -> str:
    """Each field and property of a class of RECORDS with its type, and its docstring."""
    tree = ast.parse((ROOT / RECORDS[name]).read_text())
    body = next(x.body for x in tree.body if isinstance(x, ast.ClassDef) and x.name == name)
    lines = []
    for at, node in enumerate(body):
        if isinstance(node, ast.AnnAssign):
            after = body[at + 1]
            assert isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant), (
                node.lineno
            )
            field, kind, text = ast.unparse(node.target), node.annotation, after.value.value
        elif isinstance(node, ast.FunctionDef) and node.decorator_list:
            field, kind, text = node.name, node.returns, ast.get_docstring(node)
        else:
            continue
        lines.append(f"{field}: {ast.unparse(kind)}")
        text = " ".join(str(text).split())
        lines += textwrap.wrap(text, 96, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def command_help(words: list[str]) -> str:
    """What `ondie WORDS --help` prints, in 80 columns."""
    from click.testing import CliRunner

    from ondie.emu.cli.main import commands

    names = [] if words == ["ondie"] else words
    done = CliRunner().invoke(
        commands, [*names, "--help"], prog_name="ondie", terminal_width=80, max_content_width=80
    )
    assert done.exit_code == 0, done.output
    return done.output


@functools.cache
def comparison(trace: str, device: str, steps: int, swing: bool) -> Any:
    """The result of `ondie compare`."""
    from ondie import traces
    from ondie.emu.analysis import compare
    from ondie.emu.config.config import load_preset

    return compare.compare(traces.load(trace), load_preset(device), steps=steps, swing=swing)


def results() -> str:
    """The rows of `ondie validate optimstore` with a tolerance, by kind."""
    from ondie.emu.analysis.row import KINDS
    from tests.suites import suite

    lines = [f"{'row':36}{'kind':10}{'published':>11}{'emulated':>11}{'difference':>11}"]
    rows = [row for row in suite("optimstore") if row.tolerance is not None]
    for row in sorted(rows, key=lambda row: list(KINDS).index(row.kind)):
        lines.append(
            f"{row.name:36}{row.kind:10}{row.published:>11.4g}{row.predicted:>11.4g}"
            f"{row.difference:>+11.1%}"
        )
    return "\n".join(lines) + "\n"


def quirks_of_mqsim() -> str:
    """MQSim's deviations from its parameters, and their treatment."""
    treatment = {
        quirks.ASKED: "with --quirks",
        quirks.KEPT: "always as in MQSim",
        quirks.NAMED: "not reproduced",
    }
    lines = []
    for quirk in quirks.QUIRKS:
        about = f" ({', '.join(quirk.parameters)})" if quirk.parameters else ""
        lines.append(f"{quirk.name}{about}: {treatment[quirk.treatment]}")
        text = f"MQSim {quirk.does}; correct: {quirk.right}"
        lines.append(textwrap.indent(textwrap.fill(text, 96), "    "))
    return "\n".join(lines) + "\n"


def counts(suites: list[str]) -> str:
    """The number of rows of each suite by kind."""
    from ondie.emu.analysis.row import KINDS
    from tests.suites import suite

    lines = [f"{'suite':16}" + "".join(f"{kind:>10}" for kind in KINDS)]
    for name in suites:
        kinds = [row.kind for row in suite(name)]
        lines.append(f"{name:16}" + "".join(f"{kinds.count(kind):>10}" for kind in KINDS))
    return "\n".join(lines) + "\n"


def write_amplification() -> str:
    """Write amplification of a simulated drive by over-provisioning and policy, and by theory."""
    import numpy as np

    from tests.fidelity import test_waf, waf_theory

    lines = [f"{'':19}{'greedy':^30}{'d-choices':^30}".rstrip()]
    lines += [f"{'over-provisioning':19}" + f"{'simulated':>10}{'theory':>9}{'difference':>11}" * 2]
    for op in sorted(test_waf.OVER_PROVISIONING):
        line = f"{op:<19.0%}"
        for policy, choices in (("greedy", waf_theory.GREEDY), ("d_choices", 7)):
            rng = np.random.default_rng(20260101)
            found, rho = test_waf.measured(op, rng, ftl__gc_policy=policy)
            theory = waf_theory.mean_field(rho, test_waf.PAGES, choices).waf
            line += f"{found:>10.3f}{theory:>9.3f}{found / theory - 1:>+11.1%}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def rewritten(text: str) -> str:
    """A page with every generated block made anew."""

    def replace(match: re.Match[str]) -> str:
        return f"<!-- {match['what']} -->\n```\n{make(match['what'])}```\n"

    return BLOCK.sub(replace, text)


if __name__ == "__main__":
    for page in [Path(name) for name in sys.argv[1:]] or PAGES:
        page.write_text(rewritten(page.read_text("utf-8")), "utf-8")
