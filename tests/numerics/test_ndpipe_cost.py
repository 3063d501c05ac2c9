"""Do throughput, traffic, energy and cost of three systems follow from prices and powers?"""

import pytest

from ondie.emu.ndpipe import cost
from ondie.emu.ndpipe.architectures import NETWORKS, network
from ondie.emu.ndpipe.servers import SERVERS, inference_constant, server
from ondie.emu.units import InputError

NET = network("resnet50")


def test_the_typical_system_by_hand():
    """10 Gbit/s carry 4,152 FP16 inputs per second; two V100 are busy for 61 % of the time."""
    found = cost.point("typical", NET, 6)
    assert found.photos_per_s == pytest.approx(1.25e9 / 301_056)
    assert (found.limited_by, found.traffic_bytes) == ("network of the host", 301_056)
    assert found.dollars_per_hour == pytest.approx(12.24 + 6 * 0.688)
    assert found.dollars == pytest.approx(found.dollars_per_hour / 3600 / (1.25e9 / 301_056))
    macs = NET.macs + 2 * NET.head.macs
    busy = found.photos_per_s * macs / server("host").macs_per_s
    watts = 400 + 2 * (40 + busy * 260) + 6 * 150
    assert found.joules == pytest.approx(watts / found.photos_per_s)
    jpeg = cost.point("typical", NET, 6, sent="jpeg")
    assert jpeg.limited_by == "accelerators of the host" and jpeg.traffic_bytes == 110_000


def test_ndpipe_by_hand():
    """Six T4 run all but the head and are always busy; the Tuner hardly is."""
    found = cost.point("ndpipe", NET, 6)
    rate = 6 * server("store").macs_per_s / (NET.macs - NET.head.macs)
    assert found.photos_per_s == pytest.approx(rate)
    assert (found.limited_by, found.traffic_bytes, found.cut) == ("stores", 4096, "avgpool")
    assert found.dollars_per_hour == pytest.approx(3.06 + 6 * 1.204)
    busy = rate * 3 * NET.head.macs / server("tuner").macs_per_s
    watts = 6 * (150 + 70) + 150 + 40 + busy * 260
    assert found.joules == pytest.approx(watts / rate)


def test_the_ideal_system_needs_no_network_and_no_stores():
    points = [cost.point("ideal", NET, count) for count in (1, 20)]
    assert points[0].joules == points[1].joules and points[0].dollars == points[1].dollars
    assert points[0].dollars_per_hour == 12.24 and points[0].traffic_bytes == 0
    assert points[0].joules == pytest.approx((400 + 600) / points[0].photos_per_s)


def test_inference_returns_labels():
    found = cost.point("ndpipe", NET, 3, task="inference")
    assert found.traffic_bytes == inference_constant("label") and not found.cut
    assert found.photos_per_s == pytest.approx(3 * 1198)
    assert cost.point("ideal", NET, 3, task="inference").photos_per_s == pytest.approx(2 * 3382)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_fewest_stores_of_equal_speed(name):
    net = network(name)
    goal = cost.point("typical", net, 6).photos_per_s
    found = cost.equal_speed(net, 6)
    assert found.photos_per_s >= goal > cost.point("ndpipe", net, found.stores - 1).photos_per_s


def test_the_best_cut_is_no_slower():
    for name in NETWORKS:
        best = cost.point("ndpipe", network(name), 20, cut="best")
        assert best.photos_per_s >= cost.point("ndpipe", network(name), 20).photos_per_s


def test_prices_have_a_date_and_powers_an_order():
    for each in map(server, SERVERS):
        assert each.date == "2024-04" and each.price > 0
        assert each.watts(0) == each.base_w + each.idle_w <= each.watts(1)
        with pytest.raises(InputError, match="busy = 1.5: must be a fraction from 0 to 1"):
            each.watts(1.5)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"system": "ndpip"}, "system 'ndpip': .*ndpipe"),
        ({"task": "train"}, "task 'train': .*training"),
        ({"sent": "jpg", "system": "typical"}, "sent 'jpg': .*jpeg"),
        ({"cut": "layer9"}, "the network has no such cut"),
        ({"stores": 0}, "stores = 0"),
    ],
)
def test_what_is_unknown_is_named(words, text):
    with pytest.raises(InputError, match=text):
        cost.point(**{"system": "ndpipe", "net": NET, "stores": 6} | words)
