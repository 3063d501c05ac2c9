"""Leaves of the flash section that do not go together are refused, naming them."""

import pytest

from ondie.emu.units import InputError
from tests.timing.flash import Flash

TLC = {"flash__cell": "TLC", "flash__pages_per_block": 12}
TWO_PASS = TLC | {"flash__programming": "two_pass", "flash__t_program_second": "80 us"}
REFUSED = [
    ({"flash__planes_per_die": 32}, "must be at most 31"),
    ({"flash__dies_per_channel": 3, "flash__dies_per_chip": 2}, "whole chips"),
    (
        {
            "flash__chip_busy": "per_chip",
            "flash__dies_per_channel": 8,
            "flash__dies_per_chip": 8,
            "flash__planes_per_die": 4,
        },
        "have at most 31 planes",
    ),
    (
        {"flash__chip_busy": "per_chip", "flash__plane_reads": "alone"},
        "cannot read its planes independently",
    ),
    ({"flash__chip_busy": "per_chip", "pe__kind": "per_plane"}, 'requires pe.kind = "none"'),
    ({"flash__power_planes": 1}, "at least flash.planes_per_die"),
    ({"flash__programming": "one_shot"}, '"MLC", "TLC" or "QLC"'),
    (TLC | {"flash__programming": "one_shot", "flash__pages_per_block": 13}, "whole word lines"),
    (
        TLC | {"flash__programming": "one_shot", "flash__t_program_upper": "1 us"},
        "have the same program time",
    ),
    (TLC | {"flash__programming": "one_shot", "flash__page_types": "planar"}, "page by page"),
    (TWO_PASS | {"flash__t_program_second": "0 us"}, "requires flash.t_program_second above 0"),
]


@pytest.mark.parametrize("changes, words", REFUSED)
def test_refused(changes, words):
    with pytest.raises(InputError, match=words) as caught:
        Flash(**changes)
    message = str(caught.value)
    assert "\n" not in message
    for key in changes:
        section, _, leaf = key.partition("__")
        assert f"{section}.{leaf} = " in message or len(changes) > 2, message


@pytest.mark.parametrize(
    "changes",
    [
        {"flash__planes_per_die": 16},
        {"flash__dies_per_channel": 4, "flash__dies_per_chip": 2, "flash__chip_busy": "per_chip"},
        {"flash__plane_reads": "alone"},
        {"flash__power_planes": 2},
        TLC | {"flash__programming": "one_shot"},
        TWO_PASS,
    ],
)
def test_right(changes):
    Flash(**changes)
