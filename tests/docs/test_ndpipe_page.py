"""Do the commands of docs/ndpipe.md do what the page says, in its order?"""

import re
import sys
from pathlib import Path

import pytest

from tests.docs.generate import ROOT
from tests.live.processes import PATH, Live

PAGE = (ROOT / "docs" / "ndpipe.md").read_text("utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line.removeprefix("$ ") for block in BLOCKS for line in block.splitlines()]
SCRIPTS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_commands():
    for name in ("torch", "sklearn", "skimage"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    own, npe, scale, record, compare, train, runs, infer, relabel = COMMANDS
    with Live() as live:
        live.env["PATH"] = f"{Path(sys.executable).parent}:{PATH}"  # whose python has torch
        for name, text in SCRIPTS.items():
            (live.folder / name).write_text(text)
        for name in ("new.jpg", "other.jpg"):
            image.new("RGB", (40, 50), (200, 30, 10)).save(live.folder / name)
        assert "10 rows, 0 outside their tolerance" in live.run(own, seconds=300)
        assert "+ quantized" in live.run(npe, seconds=300)
        assert "stores.png" in live.run(scale, seconds=300)
        assert (live.folder / "stores.png").read_bytes().startswith(b"\x89PNG")
        live.run(record, seconds=300)
        compared = live.run(compare, seconds=600)
        assert "ndpipe: timing only: 1 drives x 32 samples, 512 bytes of features" in " ".join(
            compared.split()
        )
        trained = live.run(train, seconds=600)
        assert "version 1, from version 0" in trained and "store 1 died" in trained
        assert "600 photos trained, each at most 1 time" in trained
        assert "from version 0: held-out loss" in live.run(runs, seconds=600)
        assert "new.jpg: photo 600, " in live.run(infer, seconds=300)
        done = live.run(relabel, seconds=300)
        assert "600 labels outdated, 600 replaced, 0 left" in done
        assert "other.jpg: photo 601, " in done
