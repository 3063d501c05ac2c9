"""Do the commands of docs/tunnel.md do what the page says, in its order?"""

import os
import re
from pathlib import Path

import pytest

from ondie.emu.live import request
from tests.docs.generate import ROOT
from tests.live.processes import Live, needs

PAGE = (ROOT / "docs" / "tunnel.md").read_text("utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line.removeprefix("$ ") for block in BLOCKS for line in block.splitlines()]


@pytest.mark.soak
def test_the_commands():
    needs("ip")
    if os.geteuid() != 0 or not Path(request.TUN_FILE).exists():
        pytest.skip("needs root and /dev/net/tun")
    up, server, client, status, down = COMMANDS
    with Live() as live:
        try:
            printed = live.run(up)
            assert "drive 1 10.77.0.3" in printed and "root, TUN" in printed
            words = live.split(server.removesuffix(" &"))
            live.start(words, lambda log: "Serving HTTP" in log.read_text())
            assert live.run(client) == "200\n"
            counts = live.run(status)
            assert "forwarded to drives 0" not in counts
        finally:
            assert live.run(down) == "cluster: down\n"
