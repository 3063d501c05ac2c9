"""Does the tunnel's cost model take the commands, the time and the host CPU that its relays take,
packet by packet?"""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondie.emu.cluster.collectives.allreduce import exchange
from ondie.emu.config.config import load_preset
from ondie.emu.nvme.tunnel import timing as tunnel_times
from ondie.emu.nvme.tunnel.cost import TunnelCost
from ondie.emu.nvme.tunnel.framing import Format, Packer, Unpacker
from ondie.emu.nvme.tunnel.timing import Times
from ondie.emu.units import InputError
from ondie.emu.validate.tunnel_packets import Transfer, run

US = 10**6
NEWPORT = TunnelCost.of(load_preset("newport"))
PLENTY = 1 << 10
"""Threads of the relay: nobody waits for one."""


def of(preset: str = "newport", *overrides: str) -> TunnelCost:
    return TunnelCost.of(load_preset(preset, overrides))


def ring_step(drives: int, n: int) -> list[Transfer]:
    """Every node sends a piece to the next."""
    return [Transfer(i, (i + 1) % (drives + 1), n) for i in range(drives + 1)]


def cost_with(
    payload: int,
    outstanding: int,
    mtu: int,
    concatenate: int,
    burst: int,
    notify: int,
    cpu: int,
    copy_rate: int,
) -> TunnelCost:
    """A tunnel whose host has threads enough."""
    rest = mtu, concatenate, burst, outstanding, 90 * US, notify, cpu, copy_rate, 0
    return TunnelCost(Times(payload - 4, *rest), Times(payload, *rest), PLENTY)


costs = st.builds(
    cost_with,
    payload=st.sampled_from([64, 512, 1504, 4096, 16384]),
    outstanding=st.integers(1, 6),
    mtu=st.sampled_from([68, 576, 1500, 9000]),
    concatenate=st.integers(0, 1),
    burst=st.integers(0, 1),
    notify=st.sampled_from([0, 10 * US, 100 * US]),
    cpu=st.sampled_from([0, 1 * US, 4 * US, 40 * US]),
    copy_rate=st.sampled_from([0, 5 * 10**9]),
)


# --- against the state machines


@given(costs, st.integers(1, 60_000), st.sampled_from(["up", "down", "across"]))
def test_a_message_is_what_the_relays_make_of_it(cost, n, way):
    """Commands, notifications, host CPU, bytes and time to the ps, whatever the format."""
    n = min(n, 100 * cost.form.payload)
    transfer = {"up": Transfer(1, 0, n), "down": Transfer(0, 1, n), "across": Transfer(1, 2, n)}[
        way
    ]
    message = {"up": cost.upward, "down": cost.downward, "across": cost.across}[way](n)
    found = run([transfer], 2, cost)
    assert found.lost == 0
    assert (found.received, found.written, found.notified) == (
        message.received,
        message.written,
        message.notified,
    )
    assert found.cpu_ps == message.cpu_ps
    assert found.end_ps == message.end_ps


def test_what_happens_at_the_same_time():
    """A block comes up just as the way down is free again: it goes down with what waited."""
    cost = cost_with(4096, 1, 1500, 1, 1, 0, 0, 0)
    message, found = cost.across(200_000), run([Transfer(1, 2, 200_000)], 2, cost)
    assert (found.written, found.end_ps) == (message.written, message.end_ps)
    assert message.end_ps == (message.written + 1) * 90 * US  # it never rests once it has begun


@given(costs, st.integers(0, 10**6), st.sampled_from([64, 4092, 4096]))
def test_commands_are_counted_as_packets_are_cut(cost, n, room):
    """The closed form of their number, against the packer that cuts them."""
    mtu, concatenate = cost.form.mtu, cost.form.concatenate
    n = min(n, 2000 * (mtu - 52))
    packer, most = Packer(room, concatenate), mtu - 52
    for start in range(0, n, most):
        packer.push(bytes(min(most, n - start) + 52))
    assert tunnel_times.count(n, room, mtu, int(concatenate)) == packer.blocks
    cut, unpacker = 0, Unpacker(mtu)
    while packer.blocks:
        assert unpacker.feed(*packer.cut())[0] == 0
        cut += 1
    assert cut == tunnel_times.count(n, room, mtu, int(concatenate))


@pytest.mark.parametrize("preset", ["newport", "laguna"])
@pytest.mark.parametrize("way", ["up", "down", "across"])
def test_the_presets_messages(preset, way, counts):
    """A piece of a ring over 24 drives; at full counts a whole gradient, too."""
    cost = dataclasses.replace(of(preset), threads=PLENTY)
    for n in counts((555_200,), (555_200, 13_880_000)):
        ends = {"up": (1, 0), "down": (0, 1), "across": (1, 2)}[way]
        message = {"up": cost.upward, "down": cost.downward, "across": cost.across}[way](n)
        found = run([Transfer(*ends, n)], 2, cost)
        assert (found.end_ps, found.commands) == (message.end_ps, message.commands)


def test_the_arithmetic_of_one_message():
    """8,000 B in 6 packets of 1,448 B or less, with 54 B of headers each 8,324 B: 3 blocks of
    4,092 B up, 3 of 4,096 B down. Up each takes 10 us of notification (the relay's 4.82 us for the
    block before are over by then), 4 us, 94 us; down 4.82 us and 94 us."""
    up, down = NEWPORT.upward(8000), NEWPORT.downward(8000)
    assert (up.received, up.notified, down.written) == (3, 3, 3)
    copy = [math.ceil(b * 10**12 / 5e9) for b in (4092, 4092, 140)]
    assert up.end_ps == 3 * (10 + 4 + 94) * US + 4 * US + copy[2]
    assert up.cpu_ps == 6 * 4 * US + sum(copy)
    assert down.end_ps == 3 * (4 + 94) * US + math.ceil(8324 * 10**12 / 5e9)
    assert (up.wire_up, down.wire_down) == (8324 + 3 * 4, 8324)


def test_across_the_host_everything_goes_twice():
    """1,448 B: a packet of 1,502 B, one command up, and when it is there, one down."""
    message = NEWPORT.across(1448)
    copy = math.ceil(1502 * 10**12 / 5e9)
    assert (message.received, message.written, message.notified) == (1, 1, 1)
    assert message.end_ps == 2 * 94 * US + 10 * US + 3 * 4 * US + 2 * copy
    assert message.cpu_ps == 3 * 4 * US + 2 * copy
    assert (message.wire_up, message.wire_down) == (1502 + 4, 1502)


def test_nothing_costs_nothing():
    for message in (NEWPORT.upward(0), NEWPORT.downward(0), NEWPORT.across(0)):
        assert message.commands == message.end_ps == message.cpu_ps == message.wire == 0
    with pytest.raises(InputError, match="message of -1 B"):
        NEWPORT.upward(-1)


def test_several_commands_at_once_and_signals_for_all():
    """Four outstanding: a quarter of the time, but for the turns of the relay that get in each
    other's way; until its thread is all that they wait for."""
    long = 4_000_000
    one, four = (
        NEWPORT.upward(long).end_ps,
        of("newport", "tunnel.outstanding=4").upward(long).end_ps,
    )
    assert one / four == pytest.approx(4, rel=0.04)
    many = of("newport", "tunnel.outstanding=64").upward(long)
    assert many.end_ps == pytest.approx(many.cpu_ps, rel=0.02)
    burst = of("newport", "tunnel.notification=burst").upward(long)
    blocks = burst.received
    assert burst.notified == 1
    # the relay's 4.82 us for each block instead of 10 + 4 us of notification
    assert one - burst.end_ps == pytest.approx(blocks * (14 - 4.82) * US, rel=0.01)


# --- the closed form


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("tunnel.outstanding=4",),
        ("tunnel.outstanding=64",),
        ("tunnel.outstanding=64", "tunnel.payload=256 KiB", "link.up=1 GB/s", "link.down=1 GB/s"),
        ("tunnel.notification=burst", "tunnel.concatenate=false"),
        ("tunnel.mtu=9000 B", "tunnel.concatenate=false"),
    ],
)
def test_the_rate_of_long_messages(way, overrides):
    """payload / command time x commands outstanding, the link, and the relay's thread. With several
    outstanding upward, its turns for one block delay those for another, 4 % at most."""
    cost = of("newport", *overrides)
    n = 40_000_000
    message = cost.upward(n) if way == "up" else cost.downward(n)
    name, rate = cost.rate(1, (way,))
    assert n / (message.end_ps / 1e12) == pytest.approx(rate, rel=0.04)
    assert name == ("link " + way if "link.up=1 GB/s" in overrides else "tunnel " + way)


def test_what_is_shared_is_shared_by_the_active():
    cost = of("newport", "tunnel.relay_threads=2", "link.uplink=200 MB/s")
    one, ten = cost.limits(1), cost.limits(10)
    for name in ("tunnel up", "tunnel down", "link up", "link down"):
        assert ten[name] == one[name]
    for name in ("host relay", "uplink"):
        assert ten[name] == pytest.approx(one[name] / 10)
    # 13.6 us of the relay, up and down, for 3.94 kB each way, two threads
    assert one["host relay"] == pytest.approx(2 * 3943 / (8.82e-6 + 4.82e-6), rel=0.01)
    assert cost.rate(1)[0] == "tunnel up" and cost.rate(10)[0] == "uplink"
    assert of("newport", "tunnel.relay_threads=2").rate(24)[0] == "host relay"


@pytest.mark.parametrize("microseconds", [100, 280])
def test_the_open_equivalents_rate(microseconds):
    """4,092 B per command of 100 to 280 us: 41 to 15 MB/s of the stream, 3.7 % less of messages."""
    cost = of(
        "newport",
        f"tunnel.command={microseconds} us",
        "tunnel.notification=burst",
        "tunnel.relay_command=0",
        "tunnel.relay_copy=0",
    )
    stream = 4092 / (microseconds * 1e-6)
    assert stream == pytest.approx({100: 40.9e6, 280: 14.6e6}[microseconds], rel=0.01)
    assert cost.rate(1, ("up",))[1] == pytest.approx(stream * 1448 / 1502, rel=1e-9)


# --- many tunnels, one host


@pytest.mark.parametrize("preset", ["newport", "laguna"])
def test_a_ring_step_over_1_to_36_tunnels(preset, counts):
    """Packet by packet: the closed form is short by what the relay's work waits for cores. That is
    a command's time and 2 % where 8 threads serve all, 6 % with one or two, most where its work
    takes nearly as long as the tunnels. It is long by up to 1 % where one thread sets the pace:
    packets that wait for it fill its commands better, and it has fewer to relay."""
    n = counts(100_000, 555_200)
    for threads, most in ((8, 0.02), (2, 0.06), (1, 0.06)):
        cost = of(preset, f"tunnel.relay_threads={threads}")
        for drives in counts((1, 2, 6, 13, 24, 36), range(1, 37)):
            found = run(ring_step(drives, n), drives, cost)
            x = exchange("ring", n * (drives + 1), drives, cost)
            step_ps = x.seconds * 1e12 / (2 * drives)
            assert found.lost == 0
            more = found.end_ps - step_ps
            least = 0.01 if threads == 1 else 0.001
            assert -least * step_ps <= more < most * step_ps + cost.down.command, (threads, drives)
            assert found.cpu_ps / 1e12 == pytest.approx(x.host_cpu_s / (2 * drives), rel=0.02)
            commands = (x.commands + x.notifications) / (2 * drives)
            assert found.commands == pytest.approx(commands, rel=0.02)


def test_a_whole_ring_packet_by_packet(counts):
    """All steps of an all-reduce: hops begin when their data have come, not all at once."""
    drives = counts(4, 24)
    nodes, steps, n = drives + 1, 2 * drives, 20_000
    transfers = []
    for step in range(steps):
        for node in range(nodes):
            before = (step - 1) * nodes
            after = (before + (node - 1) % nodes, before + node) if step else ()
            transfers.append(Transfer(node, (node + 1) % nodes, n, after))
    found = run(transfers, drives, NEWPORT)
    x = exchange("ring", n * nodes, drives, NEWPORT)
    assert found.lost == 0
    assert found.commands == x.commands + x.notifications
    assert -0.001 < found.end_ps / 1e12 / x.seconds - 1 < 0.02
    assert found.cpu_ps / 1e12 == pytest.approx(x.host_cpu_s, rel=1e-6)


@pytest.mark.parametrize("kind", ["star", "tree"])
def test_star_and_tree_packet_by_packet(kind):
    """A tree's children share their parent's way down packet by packet, not message by message."""
    drives, n = 6, 60_000
    if kind == "star":
        up = [Transfer(d, 0, n) for d in range(1, drives + 1)]
        down = [Transfer(0, d, n, tuple(range(drives))) for d in range(1, drives + 1)]
        transfers = up + down
    else:
        up = [
            Transfer(
                d,
                (d - 1) // 2,
                n,
                tuple(i for i, c in enumerate((6, 5, 4, 3)) if (c - 1) // 2 == d),
            )
            for d in (6, 5, 4, 3, 2, 1)
        ]
        down = [
            Transfer((d - 1) // 2, d, n, (4, 5) if d < 3 else (5 + (d - 1) // 2,))
            for d in (1, 2, 3, 4, 5, 6)
        ]
        transfers = up + down
    cost = dataclasses.replace(NEWPORT, host_dram=0)
    found = run(transfers, drives, cost)
    x = exchange(kind, n, drives, cost)
    assert found.lost == 0
    assert found.end_ps / 1e12 == pytest.approx(x.seconds, rel=0.01 if kind == "star" else 0.05)
    assert found.commands == pytest.approx(x.commands + x.notifications, rel=0.03)


# --- energy, configurations


def test_energy_by_component():
    """1 core-second at 10 W; 1 MB over one link at 8.9 pJ/bit, two ports where an uplink is shared;
    24 controllers of 319 mW for 2 s."""
    joules = NEWPORT.joules(2.0, 1.0, 10**6, 24)
    assert joules["host relay"] == pytest.approx(10.0)
    assert joules["PCIe"] == pytest.approx(8e6 * 8.9e-12)
    assert joules["controllers"] == pytest.approx(2 * 24 * 0.319)
    shared = of("newport", "link.uplink=8 GB/s").joules(2.0, 1.0, 10**6, 24)
    assert shared["PCIe"] == 2 * joules["PCIe"]


def test_drives_without_a_tunnel():
    with pytest.raises(InputError, match=r"smartssd: no tunnel .*; set tunnel.payload"):
        of("smartssd")


def test_one_mtu_for_all():
    with pytest.raises(InputError, match="mtu 9000 B on one drive, 1500 B on another"):
        of("newport", "tunnel.mtu=9000 B").across(1000, NEWPORT)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("tunnel.outstanding=0",), "at least one outstanding command"),
        (("tunnel.relay_threads=0",), "at least one relay thread"),
        (("tunnel.outstanding=5000",), "must be at most 4096"),
        (("tunnel.payload=32 B",), "must be from 64 B"),
        (("tunnel.payload=2 MiB",), "to frontend.max_transfer"),
        (("tunnel.mtu=40 B",), "68 B to 65535 B"),
        (("tunnel.mtu=1 MiB",), "68 B to 65535 B"),
        (("tunnel.command=0",), "requires tunnel.command above 0"),
    ],
)
def test_tunnels_that_cannot_be(overrides, words):
    with pytest.raises(InputError, match=words) as caught:
        load_preset("newport", overrides)
    assert "tunnel." in str(caught.value) and "\n" not in str(caught.value)


def test_the_formats_of_both_relays():
    assert NEWPORT.form == Format(4096, 1, 1500, True, "command")
