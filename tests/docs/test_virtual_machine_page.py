"""Do the commands of docs/virtual-machine.md do what the page says, in its order?"""

import re
import shlex

import pytest

from tests.docs.generate import ROOT
from tests.live import guest_qemu
from tests.live.guest import Guest, shared_memory
from tests.live.pcie_guest import is_served
from tests.live.processes import Live

PAGE = (ROOT / "docs" / "virtual-machine.md").read_text("utf-8")
COMMANDS = [line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
            for line in block.splitlines()]  # fmt: skip
"""With their prompts: $ on this machine, # in the guest."""


def options() -> list[str]:
    """The options of QEMU."""
    (text,) = re.findall(r"^qemu-system-x86_64 \.\.\. \\\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    return shlex.split(text.replace("\\\n", " "))


def test_the_page_shares_memory_as_the_guests_of_tests_do():
    assert options()[:4] == shared_memory("512M")
    assert {line[:2] for line in COMMANDS} == {"$ ", "# "}


@pytest.mark.soak
def test_the_commands(monkeypatch):
    if why := guest_qemu.why_not():
        pytest.skip(why)
    printed: dict[str, str] = {}
    with Live() as live:
        monkeypatch.chdir(live.folder)  # QEMU's socket is relative
        start = COMMANDS[0].removeprefix("$ ").removesuffix(" &")
        server = live.start(live.split(start), is_served)
        with Guest(live.folder, *options()[4:], memory="512M", qemu=guest_qemu.find(),
                   network=False) as guest:  # fmt: skip
            for line in COMMANDS[1:]:
                command = line[2:]
                run = live.run if line[0] == "$" else guest.ok
                printed[command] = run(command)
        live.stop(server)
    assert "ondie gen4-tlc" in printed["nvme id-ctrl /dev/nvme0"]
    assert re.search(r"available_spare\s*: 100%", printed["nvme smart-log /dev/nvme0"])
    assert "err= 0" in next(text for command, text in printed.items() if command[:4] == "fio ")
    checked = printed["e2fsck -fn /dev/nvme0n1"]
    assert "Pass 5" in checked and "WARNING" not in checked
    assert "/dev/nvme0n1" in printed["nvme list"] and "/dev/nvme0n2" in printed["nvme list"]
    assert re.search(r"^counters.host_write_bytes [1-9]", printed["ondie ctl ctl counters"], re.M)
