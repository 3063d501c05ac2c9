"""Are Identify data structures, log pages and features byte for byte what the specification says?
The offsets here are those of its figures, written down a second time."""

import numpy as np
import pytest

from ondie.emu.controller import features, log_pages
from ondie.emu.controller.actions import Do
from ondie.emu.controller.capabilities import capabilities_of
from ondie.emu.controller.events import Event
from ondie.emu.controller.health import Past, Ran, health_of, ran_of
from ondie.emu.controller.identify import CNS
from ondie.emu.controller.structure import Field, Structure
from ondie.emu.drive import Drive
from ondie.emu.engine.core.counters import COUNTERS, PROGRAMMED
from ondie.emu.nvme.status import SPARE_THRESHOLD
from ondie.emu.units import InputError
from tests.protocol.controller_host import Host, capabilities
from tests.state.written import config

IDENTIFY, GET_LOG, GET_FEATURES, SET_FEATURES, EVENT_REQUEST = 0x06, 0x02, 0x0A, 0x09, 0x0C
ALL = 0xFFFFFFFF


def number(data: bytes, first: int, last: int) -> int:
    """Bytes first to last, both included, as the figures of the specification have them."""
    return int.from_bytes(data[first : last + 1], "little")


@pytest.fixture
def host() -> Host:
    return Host()


def test_identify_controller(host):
    data = host.data(IDENTIFY, cdw10=0x01)
    assert len(data) == 4096
    assert data[4:24] == b"S1".ljust(20) and data[24:64] == b"ondie gen4-tlc".ljust(40)
    assert data[64:72] == b"1.0".ljust(8)
    found = {
        "MDTS": number(data, 77, 77), "CNTLID": number(data, 78, 79), "VER": number(data, 80, 83),
        "OAES": number(data, 92, 95), "CTRATT": number(data, 96, 99),
        "CNTRLTYPE": number(data, 111, 111), "OACS": number(data, 256, 257),
        "ACL": number(data, 258, 258), "AERL": number(data, 259, 259), "FRMW": data[260],
        "LPA": data[261], "ELPE": data[262], "TNVMCAP": number(data, 280, 295),
        "UNVMCAP": number(data, 296, 311), "KAS": number(data, 320, 321),
        "SANICAP": number(data, 328, 331), "ENDGIDMAX": number(data, 340, 341), "SQES": data[512],
        "CQES": data[513], "MAXCMD": number(data, 514, 515), "NN": number(data, 516, 519),
        "ONCS": number(data, 520, 521), "FNA": data[524], "VWC": data[525],
        "AWUN": number(data, 526, 527), "AWUPF": number(data, 528, 529),
        "SGLS": number(data, 536, 539),
    }  # fmt: skip
    assert found == {
        "MDTS": 8, "CNTLID": 1, "VER": 0x20000, "OAES": 0x100, "CTRATT": 0x11, "CNTRLTYPE": 1,
        "OACS": 0x10A, "ACL": 3, "AERL": 3, "FRMW": 3, "LPA": 6, "ELPE": 63, "TNVMCAP": 64 << 20,
        "UNVMCAP": 0, "KAS": 1, "SANICAP": 0x60000002, "ENDGIDMAX": 1, "SQES": 0x66, "CQES": 0x44,
        "MAXCMD": 4096, "NN": 16, "ONCS": 0x9F, "FNA": 0, "VWC": 0b111, "AWUN": 7, "AWUPF": 7,
        "SGLS": 1,
    }  # fmt: skip
    assert data[768:1024].rstrip(b"\0").startswith(b"nqn.2014-08.org.nvmexpress:uuid:")


def test_temperature_thresholds(host):
    """They must not be 0 since version 1.2, and the warning is the feature's default."""
    data = host.data(IDENTIFY, cdw10=0x01)
    warning, critical = number(data, 266, 267), number(data, 268, 269)
    composite = number(host.data(GET_LOG, nsid=ALL, cdw10=0x02 | 127 << 16), 1, 2)
    assert composite < warning < critical
    assert host.run(GET_FEATURES, cdw10=0x04).entries[0].dw0 == warning
    assert host.run(GET_FEATURES, cdw10=0x04, cdw11=1 << 20).entries[0].dw0 == 0


def test_identify_namespace(host):
    data = host.data(IDENTIFY, nsid=1, cdw10=0x00)
    blocks = (64 << 20) // 512
    assert [number(data, at, at + 7) for at in (0, 8, 16)] == [blocks, blocks, 11]
    assert data[24] == 0b10010 and data[25] == 1 and data[26] == 0 and data[33] == 0b1001
    # NAWUN, NAWUPF, NABSN, NABSPF, NPWG, NPWA, NPDG, NPDA: a mapping unit, 0's based
    assert {number(data, at, at + 1) for at in (34, 36, 40, 44, 64, 66, 68, 70)} == {7}
    assert number(data, 72, 73) == (1 << 20) // 512 - 1  # NOWS: what a transfer of the stripe holds
    assert number(data, 48, 63) == 64 << 20 and number(data, 102, 103) == 1
    assert [number(data, at, at + 3) for at in (128, 132, 136)] == [2 << 24 | 9 << 16, 12 << 16, 0]
    assert host.data(IDENTIFY, nsid=1, cdw10=0x11) == data
    common = host.data(IDENTIFY, nsid=ALL, cdw10=0x00)
    assert common[:24] == bytes(24) and common[128:136] == data[128:136]
    assert host.data(IDENTIFY, nsid=2, cdw10=0x00) == bytes(4096)
    for cns in (0x05, 0x08):
        assert host.data(IDENTIFY, nsid=2, cdw10=cns) == bytes(4096)
    assert host.data(IDENTIFY, nsid=1, cdw10=0x08)[14] == 1
    for nsid in (0, 17):
        assert host.status(IDENTIFY, nsid=nsid, cdw10=0x00) == 0x00B


def test_lists_and_descriptors(host):
    assert host.data(IDENTIFY, cdw10=0x02)[:8] == (1).to_bytes(8, "little")
    assert host.data(IDENTIFY, nsid=1, cdw10=0x02) == bytes(4096)
    assert host.status(IDENTIFY, nsid=ALL, cdw10=0x02) == 0x00B
    data = host.data(IDENTIFY, nsid=1, cdw10=0x03)
    assert data[0:2] == bytes([3, 16]) and data[4:20] == host.namespaces.by_nsid[1].uuid.bytes
    assert data[20:25] == bytes([4, 1, 0, 0, 0]) and data[25:] == bytes(4071)
    assert host.status(IDENTIFY, nsid=2, cdw10=0x03) == 0x00B
    for cns in (0x12, 0x13):
        assert host.data(IDENTIFY, nsid=1, cdw10=cns)[:4] == bytes([1, 0, 1, 0])
        assert host.data(IDENTIFY, nsid=1, cdw10=cns | 2 << 16) == bytes(4096)
    assert host.data(IDENTIFY, cdw10=0x1C | 0xFFFF << 16)[:8] == (1).to_bytes(8, "little")
    assert host.status(IDENTIFY, cdw10=0x1C | 5 << 16) == 0x002
    for cns in (0x05, 0x06):
        assert host.status(IDENTIFY, nsid=1, cdw10=cns, cdw11=2 << 24) == 0x002
    for cns in set(range(256)) - set(CNS):
        assert host.status(IDENTIFY, nsid=1, cdw10=cns) == 0x002


def test_fields_follow_the_configuration():
    plain = Host(capabilities(4096)).data(IDENTIFY, cdw10=0x01)
    assert number(plain, 526, 527) == 0
    for changes, cache in (
        ({"cache.mode": "off"}, 0b110),
        ({"cache.power_loss_protection": True, "cache.hold_up": "1 J"}, 0b110),
        ({"cache.mode": "read_write"}, 0b111),
    ):
        assert Host(capabilities(**changes)).data(IDENTIFY, cdw10=0x01)[525] == cache
    small = Host(capabilities(**{"frontend.max_transfer": "96 KiB"}))
    assert small.data(IDENTIFY, cdw10=0x01)[77] == 4  # 64 KiB
    with pytest.raises(InputError, match=r"frontend.max_transfer = 4096: must be at least 8192"):
        capabilities(**{"frontend.max_transfer": "4 KiB"})
    with pytest.raises(InputError, match="serial"):
        capabilities_of(
            config(), capacity_bytes=1 << 20, block_bytes=512, serial="x" * 21, firmware="1"
        )


def test_structures_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="x: B has bytes 3 to 6; it must begin at byte 4"):
        Structure("x", 8, "", (Field(0, 4, "A", ""), Field(3, 4, "B", "")))
    with pytest.raises(ValueError, match="does not fit"):
        Structure("x", 8, "", (Field(0, 1, "A", "", 256),)).pack()
    with pytest.raises(ValueError, match="5 bytes"):
        Structure("x", 8, "", (Field(0, 4, "A", "", "abcde"),)).pack()


# --- log pages


def log(host: Host, lid: int, size: int, offset: int = 0, **fields: int) -> bytes:
    dwords = size // 4 - 1
    fields["cdw11"] = fields.get("cdw11", 0) | dwords >> 16
    fields["cdw10"] = lid | (dwords & 0xFFFF) << 16 | fields.get("cdw10", 0)
    return host.data(GET_LOG, cdw12=offset, **fields)


def test_smart(host):
    host.controller.shared.read_commands, host.controller.shared.write_commands = 21, 22
    data = log(host, 0x02, 512, nsid=ALL)
    assert number(data, 1, 2) == 313 and data[0] == 0 and data[3:7] == bytes([97, 10, 3, 0])
    assert [number(data, at, at + 15) for at in range(32, 192, 16)] == [
        8, 1954, 21, 22, 1, 5, 3, 2, 4, 0,
    ]  # fmt: skip
    host.health = host.health._replace(critical_warning=0b11101)
    assert log(host, 0x02, 512)[0:7:6] == bytes([0b11101, 0b1101])
    assert host.status(SET_FEATURES, cdw10=0x04, cdw11=313) == 0
    assert log(host, 0x02, 512)[0] == 0b11111
    assert host.status(GET_LOG, nsid=1, cdw10=0x02 | 127 << 16) == 0x002


def test_endurance_group_and_ocp(host):
    data = log(host, 0x09, 512, cdw11=1 << 16)
    assert data[3:6] == bytes([97, 10, 3])
    # estimate, data read, data written, media written: billions of bytes, rounded up
    expected = [11_520_000, 1, 2, 2]
    assert [number(data, at, at + 15) for at in (32, 48, 64, 80)] == expected
    assert number(data, 160, 175) == 64 << 20
    assert host.status(GET_LOG, cdw10=0x09 | 127 << 16, cdw11=2 << 16) == 0x002
    data = log(host, 0xC0, 512)
    assert number(data, 0, 15) == 2 * 10**9 and number(data, 16, 31) == 3 * 10**9
    assert number(data, 32, 37) == 6 and number(data, 56, 63) == 9 and number(data, 64, 71) == 8
    assert number(data, 81, 87) == 10 and number(data, 88, 91) == 12 and number(data, 92, 95) == 1
    assert number(data, 112, 115) == 2 and data[120] == 40 and number(data, 160, 175) == 1
    assert number(data, 494, 495) == 3
    assert data[496:500] == bytes([0xC5, 0xAF, 0x10, 0x28])


def test_effects_firmware_and_supported(host):
    data = log(host, 0x05, 4096)
    assert number(data, 4 * 0x06, 4 * 0x06 + 3) == 1
    assert number(data, 1024 + 4, 1024 + 7) == 0b11 and number(data, 1024 + 8, 1024 + 11) == 1
    for opcode in range(256):
        known = bool(number(data, 4 * opcode, 4 * opcode))
        entries = Host().run(opcode).entries
        assert known == (not entries or entries[0].status & 0x7FF != 0x001), opcode
    assert log(host, 0x03, 512)[0] == 1 and log(host, 0x03, 512)[8:16] == b"1.0".ljust(8)
    supported = log(host, 0x00, 1024)
    for lid in range(256):
        status = host.status(GET_LOG, cdw10=lid, cdw11=1 << 16)
        assert (status == 0x109) == (supported[4 * lid] == 0), lid


def test_offsets_and_lengths_of_log_pages(host):
    whole = log(host, 0xC0, 512)
    assert log(host, 0xC0, 16, offset=496) == whole[496:]
    assert log(host, 0xC0, 64, offset=496) == whole[496:].ljust(64, b"\0")
    assert log(host, 0xC0, 4, offset=512) == bytes(4)
    for fields in (
        {"cdw12": 2}, {"cdw12": 516}, {"cdw13": 1}, {"cdw14": 1 << 23}, {"cdw11": 0xFFFF},
    ):  # fmt: skip
        assert host.status(GET_LOG, cdw10=0xC0, **fields) == 0x002, fields


def test_errors_are_logged(host):
    for _ in range(70):
        assert host.status(0x77) == 0x001
    data = log(host, 0x01, 64 * 64)
    assert number(data, 0, 7) == 70 and number(data, 63 * 64, 63 * 64 + 7) == 7
    assert number(data, 10, 11) == 7 and number(data, 12, 13) >> 1 & 0x7FF == 0x001
    assert number(log(host, 0x02, 512), 176, 191) == 70


def test_smart_is_what_the_drive_counts():
    with Drive(config(cache__mode="off"), payload=True) as drive:
        unit = drive.unit_bytes
        for lpn in range(40):
            drive.write(lpn % 8 * unit, np.full(unit, lpn, np.uint8))
        drive.read(0, unit)
        arrays = drive.arrays
        offered = capabilities_of(
            drive.cfg,
            capacity_bytes=drive.units * unit,
            block_bytes=drive.block_bytes,
            serial="S",
            firmware="1",
        )
        host = Host(offered)
        host.health = health_of(
            ran_of(arrays.count[0], drive.geometry.page_bytes, drive.now),
            page_bytes=drive.geometry.page_bytes,
            erases=np.asarray(arrays.block.erases),
            endurance_cycles=drive.cfg.flash.endurance_cycles,
            spare=int(arrays.dev.spare[0]),
            spare_at_start=int(arrays.dev.spare_at_start[0]),
            spare_threshold=SPARE_THRESHOLD,
            critical_warning=int(drive.critical_warning),
            free_blocks=0,
            used_pages=int(arrays.dev.mapped[0]),
            bad_blocks=0,
            past=Past(2).restarted(notified=False, saved=False, ran=Ran(7200 * 10**12)),
        )
        counts = dict(zip(COUNTERS, arrays.count[0].tolist(), strict=True))
    data = log(host, 0x02, 512)
    assert counts["host_write_bytes"] == 40 * unit and counts["host_read_bytes"] == unit
    assert number(data, 48, 63) == -(-40 * unit // 512_000)
    assert number(data, 128, 143) == 2 and number(data, 144, 159) == 1
    assert Past(2, 1).restarted(notified=True, saved=True, ran=Ran(1)) == (3, 1, 1, Ran(1))
    assert number(data, 112, 127) == 3 and number(data, 160, 175) == counts["media_errors"]
    media = drive.geometry.page_bytes * sum(counts[name] for name in PROGRAMMED)
    assert number(log(host, 0xC0, 512), 0, 15) == media >= 40 * unit
    assert number(log(host, 0xC0, 512), 152, 159) == 8 * unit // drive.block_bytes


# --- features


@pytest.mark.parametrize("fid", sorted(features.FEATURES))
def test_selects_of_features(host, fid):
    row = features.FEATURES[fid]
    supported = host.run(GET_FEATURES, nsid=1, cdw10=fid | 3 << 8).entries[0].dw0
    assert supported == row.saveable | row.of_namespace << 1 | 0b100
    for select in range(3):
        assert host.status(GET_FEATURES, nsid=1, cdw10=fid | select << 8) == 0
    assert host.status(GET_FEATURES, nsid=1, cdw10=fid | 4 << 8) == 0x002
    data = bytes(8) if fid == features.HOST_IDENTIFIER else b""
    saved = host.status(SET_FEATURES, data, nsid=row.of_namespace, cdw10=fid | 1 << 31)
    assert saved == (0 if row.saveable else 0x10D)


def test_current_default_and_saved(host):
    def values() -> list[int]:
        every = (0, 1, 2)
        return [host.run(GET_FEATURES, cdw10=0x08 | each << 8).entries[0].dw0 for each in every]

    assert values() == [0, 0, 0]
    assert host.status(SET_FEATURES, cdw10=0x08, cdw11=0x0203) == 0 and values() == [0x203, 0, 0]
    host.controller.registers.write(0x14, 4, 0)
    host.controller.disabled()
    assert values() == [0, 0, 0]
    assert host.status(SET_FEATURES, cdw10=0x08 | 1 << 31, cdw11=0x0405) == 0
    assert host.status(SET_FEATURES, cdw10=0x08, cdw11=0x0607) == 0
    assert values() == [0x607, 0, 0x405]
    host.controller.registers.write(0x14, 4, 0)
    host.controller.disabled()
    assert values() == [0x405, 0, 0x405]
    again = features.Features(host.offered, host.namespaces, host.controller.features.saved)
    assert again.value(features.INTERRUPT_COALESCING) == 0x405


def test_values_that_features_refuse(host):
    assert host.status(SET_FEATURES, cdw10=0x02, cdw11=1) == 0x002  # one power state
    assert host.status(SET_FEATURES, cdw10=0x04, cdw11=1 << 16) == 0x002  # no sensor 1
    assert host.status(SET_FEATURES, cdw10=0x04, cdw11=2 << 20) == 0x002
    assert host.status(SET_FEATURES, nsid=1, cdw10=0x05, cdw11=1 << 16) == 0x002  # DULBE
    assert host.status(SET_FEATURES, nsid=2, cdw10=0x05) == 0x002
    assert host.status(SET_FEATURES, nsid=ALL, cdw10=0x05, cdw11=5) == 0
    assert host.run(GET_FEATURES, nsid=1, cdw10=0x05).entries[0].dw0 == 5
    assert host.status(SET_FEATURES, nsid=1, cdw10=0x08) == 0x10F
    assert host.status(SET_FEATURES, cdw10=0x09, cdw11=3) == 0x002  # vectors 0 to 2
    assert host.run(GET_FEATURES, cdw10=0x09, cdw11=2).entries[0].dw0 == 2
    assert host.status(SET_FEATURES, cdw10=0x0B, cdw11=1 << 9) == 0x002
    assert host.status(SET_FEATURES, cdw10=0x19, cdw11=1) == 0x12B
    assert host.status(SET_FEATURES, cdw10=0x77) == 0x002
    assert host.status(SET_FEATURES, cdw10=0x0F, cdw11=1) == 0
    assert host.run(GET_FEATURES, cdw10=0x0F).entries[0].dw0 == 100


def test_number_of_queues(host):
    assert host.run(SET_FEATURES, cdw10=0x07, cdw11=0x0001_0009).entries[0].dw0 == 0x0001_0003
    assert host.status(0x05, prp1=4096, cdw10=7 << 16 | 3, cdw11=1) == 0x101  # 2 were given
    assert host.status(0x05, prp1=4096, cdw10=7 << 16 | 2, cdw11=1) == 0
    assert host.status(SET_FEATURES, cdw10=0x07) == 0x00C
    fresh = Host()
    for value in (0xFFFF, 0xFFFF_0000):
        assert fresh.status(SET_FEATURES, cdw10=0x07, cdw11=value) == 0x002


def test_the_write_cache_is_flushed_when_it_is_disabled(host):
    reply = host.run(SET_FEATURES, cdw10=0x06, cdw11=0)
    assert [action.do for action in reply.actions] == [Do.FLUSH]
    assert not host.controller.features.cache_enabled
    assert host.run(SET_FEATURES, cdw10=0x06, cdw11=0).actions == ()
    assert host.run(SET_FEATURES, cdw10=0x06, cdw11=1).actions == ()
    assert host.controller.features.cache_enabled
    none = Host(capabilities(**{"cache.mode": "off"}))
    for opcode in (GET_FEATURES, SET_FEATURES):
        assert none.status(opcode, cdw10=0x06) == 0x002


def test_host_identifier(host):
    name = bytes(range(16))
    reply = host.run(SET_FEATURES, name, cdw10=0x81, cdw11=1)
    assert reply.actions[0].host == name
    assert host.data(GET_FEATURES, cdw10=0x81, cdw11=1) == name
    assert host.data(GET_FEATURES, cdw10=0x81) == name[:8]


# --- events


def test_events_wait_for_requests_and_for_the_log_page(host):
    assert host.run(EVENT_REQUEST).entries == ()
    assert host.controller.notify(Event.SPARE) == ()  # not enabled
    assert host.status(SET_FEATURES, cdw10=0x0B, cdw11=0x1FF) == 0
    (entry,) = host.controller.notify(Event.SPARE)
    assert (entry.cid, entry.dw0) == (100, 1 | 2 << 8 | 0x02 << 16)
    assert host.run(EVENT_REQUEST).entries == ()
    assert host.controller.notify(Event.RELIABILITY) == ()  # of a type that was reported
    assert len(host.run(GET_LOG, cdw10=0x02 | log_pages.RETAIN).entries) == 1
    entries = host.run(GET_LOG, cdw10=0x02).entries
    assert [entry.dw0 for entry in entries] == [0, 1 | 0x02 << 16]
    for _ in range(4):
        assert host.run(EVENT_REQUEST).entries == ()
    assert host.status(EVENT_REQUEST) == 0x105
    assert host.status(0x18, cid=103) == 0x003  # the identifier of a request that waits
    aborted = host.run(0x08, cdw10=102 << 16).entries
    assert [entry.status & 0x7FF for entry in aborted] == [0x007, 0]
    assert host.run(EVENT_REQUEST).entries == ()
