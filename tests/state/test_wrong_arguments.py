"""Every public method of a drive and its service with wrong arguments: one clear error each, before
anything changes, and the drive goes on."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ondie.emu.clock import NEVER
from ondie.emu.drive import Drive
from ondie.emu.nand.store_check import check_store, describe_store
from ondie.emu.nvme.command import COMMAND
from ondie.emu.service import Service
from ondie.emu.units import InputError
from tests.state import small

NAN = float("nan")
NUMBERS: tuple[Any, ...] = (-1, 1 << 63, 10**5000, NAN, 0.5, None, "1", b"1", [1], np.zeros(99))
"""Values that are no count, index or time of these drives."""
SOME = tuple(value for value in NUMBERS if value is not None)
PATHS: tuple[Any, ...] = (5, b"x", "", "a\0b", 1.5, True, ["x"], object())
FLAGS: tuple[Any, ...] = (None, "yes", 1, NAN, [])
COMMANDS: tuple[Any, ...] = (
    None, 5, "x", [], [[1], [1, 2]], np.zeros(3), np.zeros((1, 1), COMMAND), {"op": 1},
)  # fmt: skip
BUFFERS: tuple[Any, ...] = (
    5, b"x" * 4096, "x", [0], np.array([None]), np.zeros((8, 8))[:, ::2],
    np.frombuffer(b"x" * 4096, np.uint8),
)  # fmt: skip
DATA: tuple[Any, ...] = (None, "x", 5j, object(), [[1], [1, 2]], [None], b"", b"x", 1 << 70)


def a_drive(payload: bool = True, **options: Any) -> Drive:
    return Drive(small.config(), payload, **options)


def one(**fields: Any) -> np.ndarray:
    command = np.zeros(1, COMMAND)
    command["op"], command["data"] = 3, -1
    for name, value in fields.items():
        command[name] = value
    return command


def given(call: Callable[..., Any], values: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    return [(call, value) for value in values]


DRIVE: dict[str, list[tuple[Any, Any]]] = {
    "submit": given(lambda d, v: d.submit(v), COMMANDS[:3] + COMMANDS[4:]),
    "submit, buffer": given(lambda d, v: d.submit(one(), v), BUFFERS),
    "buffer": given(lambda d, v: setattr(d, "buffer", v), (None, *BUFFERS)),
    "run_until, time": given(lambda d, v: d.run_until(v), SOME),
    "run_until, never": given(lambda d, v: d.run_until(v), (NEVER, 1 << 62)),
    "run_until, events": given(
        lambda d, v: d.run_until(None, v), SOME
    ),
    "run_until, completions": given(lambda d, v: d.run_until(completions=v), NUMBERS),
    "run": given(lambda d, v: d.run(None, v), SOME),
    "run, plan": given(lambda d, v: d.run(v), (5, "x", [])),
    "start": given(lambda d, v: d.start(v), (5, None, [], np.zeros(3))),
    "fill": given(lambda d, v: d.fill(0, 0, v), NUMBERS),
    "power_cut": given(lambda d, v: d.power_cut(v), NUMBERS),
    "power_on": given(lambda d, v: d.power_on(), (None,)),
    "read, offset": given(lambda d, v: d.read(v, d.block_bytes), (*NUMBERS, 1, 1 << 62)),
    "read, size": given(lambda d, v: d.read(0, v), (*NUMBERS, 0, 1, 1 << 62)),
    "write, offset": given(lambda d, v: d.write(v, bytes(d.block_bytes)), (*NUMBERS, 1, 1 << 62)),
    "write, data": given(lambda d, v: d.write(0, v), DATA),
    "stored": given(lambda d, v: d.stored(v), (*NUMBERS, 1 << 62)),
    "cached": given(lambda d, v: d.cached(v), (*NUMBERS, 1 << 62)),
    "save_report": given(lambda d, v: d.save_report(v), PATHS),
}  # fmt: skip
"""Call of a drive with payload, and a wrong value, by method."""


def refused(call: Callable[[], Any], what: object) -> None:
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert message and len(message.splitlines()) == 1 and len(message) < 400, (what, message)


@pytest.fixture(scope="module")
def drive() -> Drive:
    found = a_drive()
    found.write(0, bytes(range(256)) * 2)
    return found


@pytest.mark.parametrize("method", DRIVE)
def test_methods_of_a_drive(drive, method):
    before = drive.now, drive.events, drive.outstanding, drive.has_completions
    for call, value in DRIVE[method]:
        refused(lambda call=call, value=value: call(drive, value), (method, type(value)))
    assert before == (drive.now, drive.events, drive.outstanding, drive.has_completions)
    assert drive.read(0, 512)[:256].tolist() == list(range(256)) and not drive.why
    drive.check()


OPTIONS: dict[str, tuple[Any, ...]] = {
    "queues": (*NUMBERS, 0, 257),
    "queue_depth": (*SOME, 0, 1 << 62),
    "block_bytes": (*SOME, 0, 511, 1024),
    "seed": NUMBERS,
    "payload": FLAGS,
    "strict": FLAGS,
    "read_only": (*FLAGS, True),
    "store": PATHS,
    "durability": ("host", "disk", 5, b"host", []),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_a_drive(option):
    for value in OPTIONS[option]:
        refused(
            lambda value=value: Drive(small.config(), **{"payload": True, option: value}), value
        )


@pytest.mark.parametrize("value", [5, None, b"gen4-tlc", "", ["gen4-tlc"], NAN, "a\0b", object()])
def test_the_configuration_of_a_drive(value):
    refused(lambda: Drive(value), value)


@pytest.mark.parametrize("call", [check_store, describe_store])
def test_paths_of_a_store(call):
    for value in (*PATHS, None):
        refused(lambda value=value: call(value), value)


def test_a_service_with_wrong_arguments():
    drive = a_drive()
    for value in (None, 5, "gen4-tlc", Drive):
        refused(lambda value=value: Service(value), value)
    for value in (None, 5, "wall", ["real"], NAN):
        refused(lambda value=value: Service(drive, value), value)
    for value in (0, -1, NAN, float("inf"), 1e300, 10**400, None, "1", [1], np.zeros(3)):
        refused(lambda value=value: Service(drive, "real", value), value)
    with Service(drive) as service:
        for value in COMMANDS:
            refused(lambda value=value: service.submit(value), value)
        refused(lambda: service.submit(one().repeat(0)), "no commands")
        for value in BUFFERS:
            refused(lambda value=value: service.submit(one(), value).result(60), value)
        for fields in ({"op": 4}, {"queue": 1}, {"size": 512}, {"op": 0, "offset": 1 << 62}):
            refused(lambda fields=fields: service.submit(one(**fields)).result(60), fields)
        for value in (-1, NAN, float("inf"), 1e7, 10**400, None, "1", [1]):
            refused(lambda value=value: service.idle(value), value)
        assert not service.submit(one()).result(60)["status"].any()
    refused(lambda: service.submit(one()), "closed")


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_a_service_with_an_extreme_scale(scale):
    """At a large scale, the clock of commands ends after some seconds; then they are refused."""
    with Service(a_drive(False), "real", scale) as service:
        if scale > 1:
            service._wall._begin_ns -= 60 * 10**9
            refused(lambda: service.submit(one()).result(60), "after the end of the clock")
        else:
            begun, going_on = threading.Event(), threading.Event()
            service.call(lambda: (begun.set(), going_on.wait(60)))
            assert begun.wait(60)
            assert service.submit(one(op=3)).cancel()  # not begun yet: it would take months
            going_on.set()


# --- a closed drive, and one that belongs to a service


USES: dict[str, Callable[[Drive], Any]] = {
    "submit": lambda d: d.submit(one(arrival=d.earliest_arrival)),
    "run": lambda d: d.run(),
    "run_until": lambda d: d.run_until(d.now + 1),
    "power_cut": lambda d: d.power_cut(0),
    "power_on": lambda d: d.power_on(),
    "read": lambda d: d.read(0, 512),
    "write": lambda d: d.write(0, bytes(512)),
    "flush": lambda d: d.flush(),
    "stored": lambda d: d.stored(0),
    "cached": lambda d: d.cached(0),
    "start": lambda d: d.start([]),
    "warm_up": lambda d: d.warm_up(),
    "a service": Service,
}


def test_a_closed_drive(tmp_path):
    with a_drive(store=tmp_path / "store") as drive:
        drive.write(0, bytes(512))
    for name, use in USES.items():
        refused(lambda use=use: use(drive), name)
    drive.close()
    drive.check()
    drive.save_report(tmp_path / "report.json")
    assert not len(drive.completions()) and not drive.why
    with a_drive(store=tmp_path / "store") as again:
        assert again.started.value == "checkpoint"


def test_a_drive_belongs_to_its_service():
    drive = a_drive()
    with Service(drive) as service:
        service.submit(one()).result(60)
        uses = USES | {
            "completions": lambda d: d.completions(),
            "check": lambda d: d.check(),
            "close": lambda d: d.close(),
            "buffer": lambda d: setattr(d, "buffer", np.zeros(512, np.uint8)),
        }
        for name, use in uses.items():
            with pytest.raises(InputError, match=r"belongs to a Service; .*close it"):
                use(drive)
            assert name and drive.owner is not None
        found: list[str] = []

        def other() -> None:
            try:
                drive.flush()
            except InputError as error:
                found.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)
        assert found and not service.submit(one()).result(60)["status"].any()
    drive.flush()
    with Service(drive) as service:
        assert len(service.submit(one()).result(60)) == 1
    drive.check()
    drive.close()
