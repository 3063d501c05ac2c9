"""Are README.md and docs/ true? Their commands, tables, examples, links and names."""

import ast
import re
import shlex
from collections import Counter

import click
import pytest
from click.testing import CliRunner

from ondie.emu.cli.main import commands
from ondie.emu.config.config import load_preset
from tests.docs import generate

TEXTS = {str(page.relative_to(generate.ROOT)): page.read_text("utf-8") for page in generate.PAGES}
TEXT = "\n".join(TEXTS.values())
BLOCKS = list(generate.blocks(TEXT))
SLOW = {
    "counts: smart-infinity hypertune drives ecc", "output: validate drives", "write amplification",
    "output: preset check gen4-tlc", "output: ablation gpt2-124m --device optimstore-r1",
    "output: compare gpt-small --device optimstore-r1 --steps 22 --verbose | 4", "results",
    "counts: bytes closed-forms rates zero optimstore mqsim stannis tunnel",
    "output: validate zero | 3 4", "output: compare gpt2-124m --device optimstore-r1 --steps 1",
    "output: compare gpt2-124m --device optimstore-r1 --steps 1 --verbose",
    "output: validate optimstore | 7", "output: validate optimstore | 0 1 6 21 22 24",
}  # fmt: skip
"""What takes four seconds to a minute each: compared at full counts only."""


def test_the_pages_have_the_generated_blocks():
    assert [what for what, _ in generate.blocks(TEXTS["README.md"])] == [
        "output: compare gpt2-124m --device csd-pe --steps 1 --no-swing", "results",
    ]  # fmt: skip
    assert len(BLOCKS) == 103


def test_the_readme_is_short():
    assert len(TEXTS["README.md"].splitlines()) <= 300


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)", TEXTS[page])
    for target in targets:
        assert ((generate.ROOT / page).parent / target).exists(), target


def test_the_index_lists_every_page():
    listed = re.search(r"```{toctree}\n.*?\n\n(.*?)```", TEXTS["docs/index.md"], re.DOTALL)[1]
    pages = {name for name in TEXTS if name.startswith("docs/")} - {"docs/index.md"}
    assert {f"docs/{name}.md" for name in listed.split()} == pages


def blocks(slow: bool):
    """The parameters of the tests of blocks."""
    chosen = [(what, body) for what, body in BLOCKS if (what in SLOW) == slow]
    return pytest.mark.parametrize(("what", "body"), chosen, ids=[what for what, _ in chosen])


@blocks(slow=False)
def test_a_generated_block_is_what_the_program_gives(what, body):
    # `python -m tests.docs.generate` makes them anew.
    assert body == generate.make(what)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@blocks(slow=True)
def test_a_slow_generated_block_is_what_the_program_gives(what, body):
    assert body == generate.make(what)


def test_the_page_on_tests_lists_those_of_full_counts():
    page = TEXTS["docs/testing.md"]
    for path in (generate.ROOT / "tests").rglob("test_*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text if "mark.soak" in text else "")):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = " ".join(ast.unparse(each) for each in node.decorator_list)
                assert "mark.soak" not in marks or node.name in page, (path.name, node.name)
    table = page.partition("These tests are:\n\n")[2].partition("\n\n")[0]
    named, file = Counter(), ""
    for mine, name in re.findall(r"`([\w/]*(?:\.py)?)::([^`]+)`", table):
        file = mine or file
        named[file, name] += 1
    assert len(named) > 100 and [each for each, count in named.items() if count > 1] == []


def ondie_lines():
    return re.findall(r"^\$ ondie (.*?)\s*(?:#.*)?$", TEXT, re.MULTILINE)


def test_it_shows_every_command():
    shown = {line.split()[0] for line in ondie_lines()}
    assert shown == set(commands.list_commands(None))


@pytest.mark.parametrize("line", ondie_lines())
def test_a_shown_command_exists_with_its_options(line):
    words = shlex.split(line.partition(" -- ")[0])
    group, names = commands, []
    while words and isinstance(group, click.Group) and group.get_command(None, words[0]):
        group = group.get_command(None, words[0])
        names.append(words.pop(0))
    known = {x for parameter in group.params for x in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known
    assert CliRunner().invoke(commands, [*names, "--help"]).exit_code == 0


@pytest.mark.parametrize("target", re.findall(r"^\$ make (\w+)", TEXT, re.MULTILINE))
def test_a_shown_target_is_in_the_makefile(target):
    makefile = (generate.ROOT / "Makefile").read_text("utf-8")
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize(
    "name", re.findall(r"`((?:emu|kernels|traces|csrc|tests)/[\w./-]+)`", TEXT)
)
def test_a_named_path_exists(name):
    assert (generate.ROOT / name).exists()


def named_in_files(text: str) -> list[tuple[str, str]]:
    """(name, file) of "`name` in `file.py`", of several names, and of rows of tables that have a
    column of files and one of functions."""
    file = r"`((?:emu|kernels|traces|csrc|tests)/[\w/]+\.py)`"
    pairs = [
        (name, place)
        for names, place in re.findall(rf"((?:`\w+`(?:, | and )?)+)\s+(?:of|in)\s+{file}", text)
        for name in re.findall(r"\w+", names.replace(" and ", ","))
    ]
    rows = re.findall(r"^\|[^|]+\| (`emu/[^|]*\.py`[^|]*)\|([^|]+)\|", text, re.MULTILINE)
    for files, functions in rows:
        places = re.findall(file, files)
        pairs += [(name, " ".join(places)) for name in re.findall(r"`(\w+)`", functions)]
    return pairs


def defined_in(text: str) -> set[str]:
    """Names of the functions, classes, variables and fields that a file defines."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (each for target in targets for each in ast.walk(target))
            names = (each for each in names if isinstance(each, ast.Name))
            found |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
    return found


def is_defined(name: str, places: str) -> bool:
    """Whether one of the files defines a function, class, variable or field of this name."""
    texts = [(generate.ROOT / place).read_text("utf-8") for place in places.split()]
    return any(name in defined_in(text) for text in texts)


def test_a_name_is_in_the_file_that_the_page_names():
    pairs = named_in_files(TEXT)
    assert len(pairs) > 40
    assert [pair for pair in pairs if not is_defined(*pair)] == []
    (pair,) = named_in_files("put it into `PATHS` in `emu/analysis/compare.py`:")  # it imports it
    assert not is_defined(*pair)
    text = 'def f(a=1):\n    b: int\n    c, (d, *e) = g(h=2)\n    "i"\n'
    text += 'class J:\n    k: str = "l"\n\nm[n] = o.p = q'
    assert defined_in(text) == {"f", "b", "c", "d", "e", "J", "k"}


def test_the_figures_are_there():
    for page, text in TEXTS.items():
        for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
            path = (generate.ROOT / page).parent / name
            assert path.read_bytes().startswith(b"\x89PNG"), (page, name)


def test_the_preset_it_shows_can_be_loaded(tmp_path):
    page = TEXTS["docs/extending.md"]
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "my-drive.toml"
    path.write_text(text, "utf-8")
    cfg = load_preset(str(path))
    assert (cfg.system.name, cfg.flash.t_program_ps) == ("my-drive", 75_000_000)


def test_the_kernels_example_runs():
    """Every block of Python that imports ondie.kernels, as it stands."""
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    ours = [block for block in blocks if "from ondie.kernels import" in block]
    assert ours
    for block in ours:
        exec(compile(block, "docs", "exec"), {})


def test_the_optimizers_examples_run():
    """The blocks of Python that train, as they stand, the second after the first."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    train = [block for block in blocks if "Optimizer" in block]
    assert ["KernelOptimizer" in train[0], "CSDOptimizer" in train[1], len(train)] == [1, 1, 2]
    names = {}
    with torch.random.fork_rng(devices=[]):
        for block in train:
            exec(compile(block, "docs", "exec"), names)
    states = names["states"]
    assert states["step"] == 10
    assert {name: state.numel() for name, state in states.items() if name != "step"} == {
        "m": 64, "m_scale": 1, "v": 64, "v_scale": 1,
    }  # fmt: skip
    assert names["ledger"].steps == 3 and names["energy"].all[1] > 0
