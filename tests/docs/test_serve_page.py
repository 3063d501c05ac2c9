"""Do the commands of docs/serve.md do what the page says, in its order?

Needs root, FUSE, loop devices and the packages that the page names.
"""

import json
import re
import time

import pytest

from tests.docs.generate import ROOT
from tests.live.processes import Live, needs, needs_mounts

PAGE = (ROOT / "docs" / "serve.md").read_text("utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    re.sub(r"\s+# .*", "", line.removeprefix("$ "))
    for block in BLOCKS
    for line in block.splitlines()
]


def run_page(live: Live) -> list[tuple[str, str]]:
    """Run all commands; return them with what they print."""
    served, printed = None, []
    for command in COMMANDS:
        output = ""
        if command.endswith(" &"):
            words = live.split(command.removesuffix(" &"))
            if words[0] == "ondie":
                served = live.start(words, lambda log: log.read_text() == "nbd unix:nbd\n")
            else:
                live.start(words, lambda log, disk=live.folder / words[1]: disk.is_file())
        elif command == "kill %1":
            output = live.stop(served)
        elif command.startswith("umount "):
            output = unmounted(live, command)
        else:
            output = live.run(command)
        printed.append((command, output))
    return printed


def unmounted(live: Live, command: str) -> str:
    """Run `umount`, again while the kernel still ends what the command before had open."""
    for _ in range(50):
        done = live.run(f"sh -c '{command} 2>&1 || true'")
        if "target is busy" not in done:
            assert done == "", done
            return done
        time.sleep(0.2)
    return live.run(command)


@pytest.mark.soak
def test_the_commands(tmp_path):
    needs(
        "nbdinfo", "nbdcopy", "nbdfuse", "qemu-img", "fio", "mkfs.ext4", "sqlite3", "git", "fstrim"
    )
    needs_mounts()
    with Live() as live:
        printed = run_page(live)
        image = (live.folder / "image.raw").stat().st_size
    one = dict(printed)  # the last of each
    assert one["umount mnt"] == "" and "errors:" not in one["git -C mnt/clone fsck --strict"]
    assert f"export-size: {image} " in one["nbdinfo 'nbd+unix:///?socket=nbd'"]
    before, after = (
        int(text.removeprefix("mapped_units ")) for command, text in printed if "grep" in command
    )
    assert 0 < after < before - 400  # the clone has 1.3 MB of numbers, and 0.5 MB compressed
    checked = one["e2fsck -fn fuse/disk"]
    assert "Pass 5" in checked and "WARNING" not in checked and "FIXED" not in checked
    found = next(text for command, text in reversed(printed) if "integrity_check" in command)
    assert found == "ok\n1000\n"
    assert one["ondie ctl ctl inject-media-error --offset 0 --size 4096"] == "units 1\n"
    assert one["ondie ctl ctl power-cut"].startswith("events 0\n")
    assert one["ondie ctl ctl power-on"].startswith(
        "condition online\nwhy the tables were recovered"
    )
    assert "condition read-only\n" in one["ondie ctl ctl wear-out"]
    last = json.loads(one["ondie ctl ctl counters --raw"])
    assert last["condition"] == "read-only" and last["requests"]["flushes"] > 0


def test_the_page_names_every_command_of_the_socket():
    from ondie.emu.serve.control_words import COMMANDS as known

    section = PAGE.split("## Let it fail")[1].split("## Contract")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE) == list(known)
