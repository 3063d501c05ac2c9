"""The README's generated blocks: output of commands, and the map of the code.

Owns finding, making and (run as a script) rewriting them. Does not judge: test_readme.py does.
`<!-- output: COMMAND -->` is followed by a fenced block with what `ondie COMMAND` prints; numbers
behind `|` choose among the paragraphs of that output. `<!-- map -->` by one line for each file.
"""

import ast
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"<!-- (?P<what>[^>]*?) -->\n```\n(?P<body>.*?)```\n", re.DOTALL)
ROOMS = ("kernels", "csrc", "traces", "emu")


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(what, body) of each generated block."""
    for match in BLOCK.finditer(text):
        yield match["what"], match["body"]


def make(what: str) -> str:
    """The block as it should be."""
    if what == "map":
        return code_map()
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
    from ondie.emu.analysis import compare
    from ondie.emu.cli.commands import ablation
    from ondie.emu.cli.console import WIDTH
    from ondie.emu.cli.tables import compare as report
    from ondie.emu.config.config import load_preset
    from ondie.emu.paths.base import Options

    screen = Console(file=io.StringIO(), width=WIDTH, highlight=False)
    match arguments:
        case ["compare", trace, "--device", device, "--steps", steps]:
            cfg = load_preset(device)
            found = compare.compare(traces.load(trace), cfg, steps=int(steps))
            report.show(found, screen)
        case ["validate", *name]:
            validate.show(validate.run(*(name or [None])), screen)
        case ["ablation", trace, "--device", device]:
            cfg = load_preset(device)
            ablation.command(cfg, traces.load(trace), Options(), None, screen, None)
        case ["stannis", *_]:
            words = [sys.executable, "-m", "ondie.emu.cli", *arguments]
            return subprocess.run(words, check=True, capture_output=True, text=True).stdout
        case _:
            raise ValueError(f"no way to show {arguments}")
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def code_map() -> str:
    """One line for each tracked file of the rooms: its path and its first sentence."""
    listed = subprocess.run(
        ["git", "ls-files", *ROOMS], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    lines = []
    for name in listed:
        path = ROOT / name
        sentence = first_sentence(path)
        if sentence:
            lines.append(f"{name:34} {sentence}")
    return "\n".join(lines) + "\n"


def first_sentence(path: Path) -> str:
    """What a file says of itself, in one line; empty for data and markers."""
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    elif path.suffix in (".c", ".h"):
        text = path.read_text("utf-8").partition("/*")[2].partition("*/")[0]
        text = "\n".join(line.strip(" *") for line in text.strip().splitlines())
    else:
        return ""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    sentence = re.split(r"\.(?:\s|$)", paragraph, maxsplit=1)[0].rstrip(":")
    sentence = sentence.removeprefix("Owns: ")
    return sentence if len(sentence) <= 96 else sentence[:93].rsplit(" ", 1)[0] + " ..."


def rewritten(text: str) -> str:
    """The README with every generated block made anew."""

    def replace(match: re.Match[str]) -> str:
        return f"<!-- {match['what']} -->\n```\n{make(match['what'])}```\n"

    return BLOCK.sub(replace, text)


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text("utf-8")), "utf-8")
