"""Does `ondie tunnel exec` run a program at the end that is named, and tell it where it is?"""

import pytest

from ondie.emu.live import entry
from ondie.emu.units import InputError
from tests.live.tunnel_cluster import NAME, cluster
from tests.smoke.commands import here, refused

FOUND = {
    "own_user": False,
    "pid": 7,
    "host": {"address": "10.1.2.1", "others": "10.1.2.0/24", "device": "ondie7"},
    "drives": [
        {
            "address": f"10.1.2.{number + 2}",
            "others": "10.1.2.0/24",
            "device": "tun0",
            "namespace": f"ondie-7-{number}",
        }
        for number in range(3)
    ],
}


@pytest.mark.parametrize(
    ("where", "number"),
    [("host", -1), ("10.1.2.1", -1), ("0", 0), ("2", 2), ("10.1.2.3", 1), ("10.1.2.4", 2)],
)
def test_an_end_has_a_number_and_an_address(where, number):
    assert entry.end_of(FOUND, where) == number
    device = "ondie7" if number < 0 else "tun0"
    assert entry.variables_at(FOUND, where) == {
        "ONDIE_TUNNEL_ADDRESS": f"10.1.2.{number + 2}",
        "ONDIE_TUNNEL_DEVICE": device,
        "ONDIE_TUNNEL_OTHERS": "10.1.2.0/24",
    }


@pytest.mark.parametrize("where", ["3", "-1", "", "10.1.2.5", "HOST", "²", "00"])
def test_another_end_is_one_line(where):
    line = (
        f"{where}: no such end of the tunnel; must be host, a drive from 0 to 2, or the address of "
        "an end"
    )
    with pytest.raises(InputError) as caught:
        entry.words_at(FOUND, where, ("true",), False)
    assert str(caught.value) == line


def test_programs_at_the_ends(capsys):
    with cluster("--drives", "1") as made:
        told = "$ONDIE_TUNNEL_ADDRESS $ONDIE_TUNNEL_DEVICE"
        line = f"echo {told}; ip -o -4 addr"
        ways = (
            (-1, ["--shell", "host", f"echo {told};", "ip", "-o", "-4", "addr"], 0),
            (0, [made.address(0), "--", "sh", "-c", f"{line}; exit 7"], 7),
        )
        for end, words, code in ways:
            words = ["ondie", "tunnel", "exec", "--name", NAME, *words]
            printed = made.live.run(words, code=code)
            address, device = printed.split("\n")[0].split()
            assert address == made.address(end)
            assert f" {device} " in printed and f" {address}/" in printed
        words = ["tunnel", "exec", "--name", NAME, "1", "--", "true"]
        refused(
            here(capsys, *words), "1: no such end of the tunnel; must be host, a drive from 0 to 0"
        )
