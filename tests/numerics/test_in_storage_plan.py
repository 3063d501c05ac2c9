"""Order of the rows of an in-storage update: what a chunk of parameters waits for."""

import numpy as np
import pytest

from ondie.emu.analysis.path_choice import PATHS
from ondie.emu.config.config import load_preset
from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.nvme import command
from ondie.emu.validate import model


@pytest.mark.parametrize("devices", [1, 2])
def test_buffers_are_free_when_their_chunk_is_written_and_its_weights_are_sent(devices):
    """Chunk i of a device reads into the buffers of chunk i - window. Its first rows wait, directly
    or through others, for every program of that chunk and for the transfer of its new weights."""
    cfg = load_preset("smartssd").replace({"system.devices": devices})
    one = PATHS["in_storage"](cfg, model("adam", 1 << 20))
    window = one.window
    path = PATHS["in_storage"](cfg, model("adam", one.granule() * (window + 3) * devices))
    plan = np.concatenate(list(path.plan(0)))
    waits = {
        int(row["id"]): [int(row[name]) for name in ("after0", "after1") if row[name] >= 0]
        for row in plan
    }

    def before(row):
        found, left = set(), [row]
        while left:
            for other in waits[left.pop()]:
                if other not in found:
                    found.add(other)
                    left.append(other)
        return found

    for device in range(devices):
        mine = plan[plan["device"] == device]
        updates = int((mine["resource"] == rows.ISP).sum())
        sent = mine[mine["resource"] == rows.DMA_UP]["id"]
        down = mine[mine["resource"] == rows.DMA_DOWN]["id"]
        written = mine[(mine["resource"] == rows.ISP_IO) & (mine["kind"] == command.WRITE)]["id"]
        written = written.reshape(updates, -1)
        assert updates == len(sent) == len(down) == window + 3 and written.shape[1] == 3
        for chunk in range(window, updates):
            earlier = before(int(down[chunk]))
            freed = chunk - window
            assert {int(sent[freed]), *written[freed].tolist()} <= earlier
            assert int(sent[freed + 1]) not in earlier
