"""Are wrong names of clusters refused before any file is touched, and do names of devices fit?"""

import os

import pytest
from click.testing import CliRunner

from ondie.emu.cli.main import commands
from ondie.emu.live import request
from ondie.emu.live.network_device import NAME_BYTES, TunDevice
from ondie.emu.units import InputError
from tests.live.processes import needs_tunnels


@pytest.mark.parametrize("words", [["down"], ["status"], ["exec", "host", "true"], ["up"]])
@pytest.mark.parametrize("name", ["../victim/x", "a.json/b", "n" * 300, "", ".", "a\nb"])
def test_a_wrong_name_is_one_line_and_touches_no_file(name, words, tmp_path, monkeypatch):
    place, victim = tmp_path / "state", tmp_path / "victim"
    place.mkdir()
    victim.mkdir()
    (place / "a.json").write_text("{}")
    for kind in ("json", "sock", "log"):
        (victim / f"x.{kind}").write_text("of others")
    monkeypatch.setattr(request, "folder", lambda: place)
    command, *others = words
    done = CliRunner().invoke(commands, ["tunnel", command, "--name", name, *others])
    assert isinstance(done.exception, InputError)  # exit code 2
    why = str(done.exception)
    assert why.startswith("--name ") and why.endswith(": must be 1 to 32 letters, digits, - or _")
    assert why.count("\n") == 0 and len(why) < 120
    assert sorted(each.read_text() for each in victim.iterdir()) == ["of others"] * 3
    assert [each.name for each in place.iterdir()] == ["a.json"]


def test_names_of_devices_fit_for_any_process_and_drive():
    most = 1 << 22  # kernel.pid_max
    names = [
        name(number, pid)
        for pid in (1, most)
        for number in range(-1, request.MOST_DRIVES)
        for name in (request.device_name, request.peer_name)
    ]
    assert max(map(len, names)) <= NAME_BYTES
    assert len(set(names)) == len(names)


def test_a_taken_name_of_a_device_is_one_line():
    needs_tunnels()
    name = f"taken{os.getpid()}"
    device = TunDevice(name)
    try:
        said = f"^device {name}: cannot be opened: the name is taken$"
        with pytest.raises(InputError, match=said):
            TunDevice(name)
    finally:
        device.close()
