"""Runs that MQSim cannot finish: --quirks ends them where MQSim does, a run without them goes on.

Figures: MQSim at the commit of tests/fidelity/mqsim/cases.json, with the corrections named there;
requests that completed and were generated, and the mean device response time (us).
"""

import json
import xml.etree.ElementTree as ET

import pytest

from tests.config.mqsim_files import SYNTHETIC, drive_xml, flow_xml, put, workload_xml
from tests.smoke.commands import here
from tests.smoke.test_cli_mqsim import DRIVE, FLOW

WRITES = {
    "Read_Percentage": "0",
    "Total_Requests_To_Generate": "6000",
    "Working_Set_Percentage": "100",
}
STALLED = {
    ("RANDOM", "false"): (1180, 1184, 953.388),
    ("RANDOM", "true"): (228, 232, 1622.570),
    ("RANDOM_PP", "false"): (1770, 1774, 1539.620),
}


def run(folder, capsys, *options, **drive):
    put(folder / "ssd.xml", drive_xml(**(DRIVE | drive)))
    put(folder / "load.xml", workload_xml([flow_xml(SYNTHETIC, **(FLOW | WRITES))]))
    arguments = "-i", folder / "ssd.xml", "-w", folder / "load.xml", "--json", folder / "a.json"
    return here(capsys, "mqsim", *arguments, *options)


@pytest.mark.parametrize(("policy", "filled"), STALLED)
def test_a_run_ends_where_writes_wait_forever(tmp_path, capsys, policy, filled):
    """A random victim that is of no use ends the collection, and nothing begins another."""
    drive = {"GC_Block_Selection_Policy": policy, "Enabled_Preconditioning": filled}
    done = run(tmp_path, capsys, "--quirks", **drive)
    assert done.code == 0, done
    completed, generated, mean = STALLED[policy, filled]
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["requests"] == completed
    assert found["unserved_requests"] == [generated - completed]
    assert found["latency_us"]["all"]["mean"] == pytest.approx(mean, rel=1e-5)
    assert f"{generated - completed} requests never complete, as in MQSim" in done.out
    assert f"{generated} requests generated, {completed} serviced" in done.out
    flow = ET.parse(tmp_path / "load_scenario_1.xml").getroot().find("Host/Host.IO_Flow")
    assert flow.findtext("Request_Count") == str(generated)
    assert flow.findtext("Write_Request_Count") == str(generated)


def test_without_quirks_every_request_completes(tmp_path, capsys):
    done = run(tmp_path, capsys, GC_Block_Selection_Policy="RANDOM")
    assert done.code == 0, done
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["requests"] == 6000 and "unserved_requests" not in found
