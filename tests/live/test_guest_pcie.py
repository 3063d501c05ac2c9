"""The unmodified Linux NVMe driver at a drive that is a PCIe function, in one virtual machine, with
QEMU's own NVMe device beside it.

One boot serves all checks, in their order; the last one pulls the drive out, which ends QEMU 11.1.
tests/protocol/test_vfio_user.py asks most of it from a client in the test, in the ordinary run.
"""

import re
from collections.abc import Iterator

import pytest

from ondie.emu.config.config import configuration
from ondie.emu.controller.capabilities import Capabilities, capabilities_of
from ondie.emu.controller.identify_controller import IDENTIFY_CONTROLLER, ControllerFacts
from ondie.emu.controller.identify_namespace import IDENTIFY_NAMESPACE, NamespaceFacts
from ondie.emu.controller.namespaces import Namespaces
from ondie.emu.ftl.tables import logical_pages
from ondie.emu.nand.geometry import Geometry
from tests.live import guest_qemu
from tests.live.pcie_guest import (
    BLOCK,
    OURS,
    QEMUS,
    QUEUES,
    SMALL,
    VERIFIED,
    Machine,
    machine,
    wait_until_gone,
)
from tests.live.qemu_differences import DIFFERENCES
from tests.protocol.vfio_client import Driver, VfioClient

pytestmark = pytest.mark.soak
FEATURES = {1: "Arbitration", 2: "Power Management", 4: "Temperature Threshold",
            6: "Volatile Write Cache", 7: "Number of Queues", 8: "Interrupt Coalescing",
            10: "Write Atomicity Normal", 11: "Async Event Configuration"}  # fmt: skip
NAMESPACE_BLOCKS = 1 << 16
PCI = "/sys/bus/pci/devices"


@pytest.fixture(scope="module")
def pc(tmp_path_factory) -> Iterator[Machine]:
    if why := guest_qemu.why_not():
        pytest.skip(why)
    with machine(tmp_path_factory.mktemp("reference"), "--store", "store") as found:
        yield found


@pytest.fixture(scope="module")
def expected(pc) -> Capabilities:
    """What the emulator says of a drive with these settings."""
    cfg = configuration("gen4-tlc", SMALL)
    geometry = Geometry.of(cfg)
    sizes = logical_pages(cfg, geometry) * geometry.page_bytes
    listed = pc.json("list")["Devices"]
    (ours,) = [each for each in listed if each["DevicePath"] == f"/dev/{OURS}n1"]
    return capabilities_of(
        cfg, capacity_bytes=sizes, block_bytes=BLOCK, serial=ours["SerialNumber"],
        firmware=ours["Firmware"], io_queues=16, vectors=17,
    )  # fmt: skip


def queues_in_use(pc: Machine) -> list[int]:
    """Interrupts of each I/O queue of the drive."""
    lines = pc.ok(f"grep {OURS}q /proc/interrupts").splitlines()
    counts = {int(line.rpartition(f"{OURS}q")[2]): sum(map(int, line.split()[1 : QUEUES + 1]))
              for line in lines}  # fmt: skip
    return [counts[number] for number in range(1, QUEUES + 1)]


# --- what it is


def test_the_driver_finds_the_drive(pc):
    assert f"{OURS}: {QUEUES}/0/0 default/read/poll queues" in pc.ok("dmesg")
    assert pc.ok(f"cat /sys/class/nvme/{OURS}/transport").strip() == "pcie"
    assert pc.ok(f"cat /sys/class/nvme/{OURS}/state").strip() == "live"


def test_identify_is_what_the_emulator_says(pc, expected):
    found = pc.bytes(f"id-ctrl /dev/{OURS}")
    assert found == IDENTIFY_CONTROLLER.pack(ControllerFacts(expected, 0))
    namespaces = Namespaces(expected)
    whole = namespaces.create_whole()
    used = pc.json(f"id-ns /dev/{OURS}n1")["nuse"]
    unit = pc.counters()["mapped_units"]
    assert used == unit * expected.mapping_unit_bytes // BLOCK
    found = pc.bytes(f"id-ns /dev/{OURS}n1")
    assert found == IDENTIFY_NAMESPACE.pack(NamespaceFacts(expected, whole, used))
    assert int(pc.ok(f"cat /sys/block/{OURS}n1/size")) * 512 == expected.capacity_bytes


def fields(pc: Machine, name: str) -> dict[str, dict[str, object]]:
    """Every field of a controller's structures, logs and features."""
    found: dict[str, dict[str, object]] = {
        "id-ctrl": pc.json(f"id-ctrl /dev/{name}"),
        "id-ns": pc.json(f"id-ns /dev/{name}n1"),
        "smart-log": pc.json(f"smart-log /dev/{name}"),
        "fw-log": pc.json(f"fw-log /dev/{name}")[name],
    }
    errors = pc.json(f"error-log /dev/{name}")["errors"]
    found["error-log"] = {"entries": len(errors), **errors[0]}
    text = pc.ok(f"nvme get-log /dev/{name} --log-id=5 --log-len=2048 -b | od -An -v -tx4 -w4")
    words = [int(word, 16) for word in text.split()]
    found["effects-log"] = {f"{'io' if at >> 8 else 'admin'} {at & 255:02x}h": word
                            for at, word in enumerate(words)}  # fmt: skip
    features = pc.ok(f"for each in {' '.join(map(str, FEATURES))}; do nvme get-feature "
                     f"/dev/{name} -f $each; done")  # fmt: skip
    values = re.findall(r"Current value:(\S+)", features)
    assert len(values) == len(FEATURES)
    found["get-feature"] = dict(zip(FEATURES.values(), (int(each, 16) for each in values),
                                    strict=True))  # fmt: skip
    psd = found["id-ctrl"].pop("psds")
    assert isinstance(psd, list)
    found["id-ctrl"] |= {f"ps0 {key}": value for key, value in psd[0].items()}
    return found


def test_fields_beside_qemus_own_device(pc):
    pc.ok(f"dd if=/dev/{OURS}n1 of=/dev/null bs=1M count=4 iflag=direct")
    ours, qemus = fields(pc, OURS), fields(pc, QEMUS)
    for kind, values in ours.items():
        assert values.keys() == qemus[kind].keys()
        differ = {name for name, value in values.items() if value != qemus[kind][name]}
        assert differ == DIFFERENCES.get(kind, {}).keys(), kind
    assert ours.keys() >= DIFFERENCES.keys()
    assert all(reason for table in DIFFERENCES.values() for reason in table.values())
    features = ours["get-feature"]
    assert features["Number of Queues"] == (QUEUES - 1) * 0x10001
    assert features["Volatile Write Cache"] == 1


def test_an_error_is_in_the_log(pc, expected):
    status, text = pc.guest.run(f"nvme read /dev/{OURS}n1 -s {expected.capacity_bytes // BLOCK} "
                                f"-z {BLOCK} -c 0")  # fmt: skip
    assert status == 1 and "LBA Out of Range" in text
    newest = pc.json(f"error-log /dev/{OURS}")["errors"][0]
    assert newest["lba"] == expected.capacity_bytes // BLOCK and newest["nsid"] == 1
    assert newest["status_field"] == 0x4080 and newest["parm_error_location"] == 40
    assert newest["error_count"] == int(pc.json(f"smart-log /dev/{OURS}")["num_err_log_entries"])


# --- what it does


def test_two_namespaces(pc):
    pc.ok(f"nvme delete-ns /dev/{OURS} -n 1")
    for nsid in (1, 2):
        words = f"-s {NAMESPACE_BLOCKS} -c {NAMESPACE_BLOCKS} -f 0"
        assert f"created nsid:{nsid}" in pc.ok(f"nvme create-ns /dev/{OURS} {words}")
        pc.ok(f"nvme attach-ns /dev/{OURS} -n {nsid} -c 1")
    pc.ok(f"nvme ns-rescan /dev/{OURS}; until [ -b /dev/{OURS}n2 ]; do sleep 0.05; done")
    for nsid, byte in ((1, "a"), (2, "b")):
        pc.ok(f"tr '\\0' {byte} < /dev/zero | dd of=/dev/{OURS}n{nsid} bs=1M count=1 "
              "iflag=fullblock oflag=direct")  # fmt: skip
    for nsid, byte in ((1, "a"), (2, "b")):
        text = pc.ok(f"dd if=/dev/{OURS}n{nsid} bs=1M count=1 iflag=direct 2>/dev/null | "
                     f"tr -d {byte} | wc -c")  # fmt: skip
        assert int(text) == 0
        assert int(pc.ok(f"cat /sys/block/{OURS}n{nsid}/size")) * 512 == NAMESPACE_BLOCKS * BLOCK


def test_fio_verifies_on_all_queues(pc):
    before = queues_in_use(pc)
    jobs = (
        "--size=2M --offset_increment=4M --numjobs=4 --cpus_allowed=0-3 --cpus_allowed_policy=split"
    )
    found = pc.fio(f"{OURS}n1", f"{VERIFIED} {jobs}")
    assert found["read"]["io_bytes"] == 4 * (2 << 20) and found["write"]["io_bytes"] > 2 << 20
    assert all(now > then for now, then in zip(queues_in_use(pc), before, strict=True))


def test_a_file_system(pc):
    disk = f"/dev/{OURS}n2"
    pc.ok(f"mkfs.ext4 -F -q {disk} && mount -o discard {disk} /mnt")
    pc.ok("dd if=/dev/urandom of=/tmp/x bs=64k count=64 2>/dev/null && cp /tmp/x /mnt/x && sync")
    pc.ok("echo 3 > /proc/sys/vm/drop_caches; cmp /tmp/x /mnt/x")
    mapped = pc.counters()["mapped_units"]
    pc.ok("rm /mnt/x && sync && umount /mnt")
    assert pc.counters()["mapped_units"] < mapped - 900
    pc.ok(f"e2fsck -fn {disk}")


def test_smart_counts_what_the_emulator_counts(pc):
    log, counters = pc.json(f"smart-log /dev/{OURS}"), pc.counters()
    for name, direction in (("data_units_read", "read"), ("data_units_written", "write")):
        moved = counters["counters"][f"host_{direction}_bytes"]
        assert int(log[name]) == -(-moved // 512000) > 0
    assert int(log["media_errors"]) == counters["counters"]["media_errors"]
    assert log["critical_warning"] == counters["critical_warning"]
    assert int(log["power_cycles"]) == 1 and int(log["unsafe_shutdowns"]) == 0
    before = int(log["host_write_commands"])
    found = pc.fio(f"{OURS}n1", f"{VERIFIED} --size=1M")
    log = pc.json(f"smart-log /dev/{OURS}")
    assert int(log["host_write_commands"]) == before + found["write"]["total_ios"]


# --- while it works


@pytest.mark.parametrize("how", [
    f"nvme reset /dev/{OURS}",
    f"echo 1 > /sys/class/nvme/{OURS}/reset_controller",
    f"echo 1 > $(readlink -f /sys/class/nvme/{OURS}/device)/reset",
])  # fmt: skip
def test_a_reset_under_load(pc, how):
    with pc.load(f"{OURS}n1"):
        pc.ok(how)
        pc.ok(how)
    text = pc.load_ended()
    assert "ended-0" in text and "err= 0" in text, text
    assert pc.ok(f"cat /sys/class/nvme/{OURS}/state").strip() == "live"
    assert pc.fio(f"{OURS}n1", f"{VERIFIED} --size=1M")["read"]["io_bytes"] == 1 << 20


def test_removed_under_load_and_found_again(pc):
    pc.ok(f"mount /dev/{OURS}n2 /mnt && cp /tmp/x /mnt/kept && sync && umount /mnt")
    place = pc.ok(f"readlink -f /sys/class/nvme/{OURS}/device").strip()
    with pc.load(f"{OURS}n1"):
        pc.ok(f"echo 1 > {place}/remove")
    text = pc.load_ended()
    assert "ended-1" in text and "io_u error on file" in text, text
    assert pc.guest.run(f"ls /dev/{OURS}n1")[0] == 1
    pc.ok(f"echo 1 > /sys/bus/pci/rescan; until [ -b /dev/{OURS}n2 ]; do sleep 0.05; done")
    pc.ok(f"mount /dev/{OURS}n2 /mnt && cmp /tmp/x /mnt/kept && umount /mnt")
    pc.ok(f"e2fsck -fn /dev/{OURS}n2")


def test_unplugged_under_load(pc):
    """The guest lets the drive go; then QEMU 11.1 ends by an assertion of its own, in the end of
    its device. The server serves the next client."""
    with pc.load(f"{OURS}n1"):
        pc.qmp("device_del", id="drive")
        wait_until_gone(pc)
    said = pc.qemu_ended()
    assert "memory_region_del_subregion: Assertion `subregion->container == mr' failed" in said
    assert pc.server.poll() is None
    with VfioClient(pc.live.folder / "sock") as client:
        client.map()
        driver = Driver(client)
        driver.enable()
    log = pc.counters()
    assert log["condition"] == "online"
    pc.live.stop(pc.server)
