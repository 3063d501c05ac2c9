"""How the served drive differs from QEMU's own NVMe device: each field, with its reason.

Owns that table. Does not own the comparison (test_guest_pcie.py). Names are those of nvme-cli, and
of the opcodes for the log of command effects. Source: NVM Express Base Specification 2.0; QEMU
11.1, hw/nvme/ctrl.c.
"""

NAMES = "another vendor, product and drive; no PCI vendor identifier is assigned to this project"
VERSION = "NVM Express 2.0; QEMU implements 1.4"
SIZE = "another size of the drive, of its transfers, or of its queues and tables"
CAPACITY = "reports its capacity; QEMU's does not"
GROUP = "reports its wear as an endurance group, and has a 128-bit host identifier"
COMMANDS = (
    "has Write Uncorrectable and Sanitize, and neither Copy, security, directives nor metadata"
)
VENDOR = "vendor specific commands have the standard format"
ALIVE = "has a Keep Alive timer, which NVMe/TCP needs"
POWER = "has no model of the power that it takes: nothing reported"
HEAT = "has no model of heat: another constant temperature, and other thresholds"
ARBITRATION = "has no preferred burst of arbitration"
FORMATS = "one LBA format, without metadata; QEMU's has eight"
ATOMIC = "names its atomic units, and does not report errors of deallocated blocks"
STRIPE = "names the write that keeps all dies busy"
USED = "counts the blocks that are mapped; QEMU's counts all"
WEAR = "counts spare blocks and starts; QEMU's does not"
READ = "the test has read from this device only"
SLOT = "the slot has the revision that Identify reports; QEMU's says 1.0"
ERRORS = "keeps 64 errors; QEMU's keeps one"
ADMIN = "has this admin command, and QEMU's does not"
NOT_ADMIN = "does not have this admin command"
ATTACH = "an attachment changes the inventory of namespaces alone"
FORMAT = "a format of one namespace excludes other commands"
FLUSH = "a flush changes no contents; QEMU says it does"
IO = "has this I/O command, and QEMU's does not"
NOT_IO = "does not have this I/O command"
QUEUES = "reports the queues that the host asked for; QEMU's reports all that it has"

DIFFERENCES: dict[str, dict[str, str]] = {
    "id-ctrl": {
        "vid": NAMES, "ssvid": NAMES, "sn": NAMES, "mn": NAMES, "fr": NAMES, "ieee": NAMES,
        "subnqn": NAMES, "cntlid": NAMES, "rab": ARBITRATION, "mdts": SIZE, "ver": VERSION,
        "ctratt": GROUP, "oacs": COMMANDS, "lpa": "one SMART log for the drive; QEMU's has one "
        "for each namespace", "elpe": ERRORS, "avscc": VENDOR, "cctemp": HEAT,
        "tnvmcap": CAPACITY, "kas": ALIVE, "sanicap": COMMANDS, "endgidmax": GROUP,
        "maxcmd": SIZE, "nn": SIZE, "oncs": COMMANDS, "icsvscc": VENDOR, "ocfs": COMMANDS,
        "sgls": "SGLs name memory by address only", "ps0 max_power": POWER, "ps0 entry_lat": POWER,
        "ps0 exit_lat": POWER,
    },
    "id-ns": {
        "nsze": SIZE, "ncap": SIZE, "nuse": USED, "nsfeat": ATOMIC, "nlbaf": FORMATS,
        "flbas": FORMATS, "mc": FORMATS, "dpc": FORMATS, "nvmcap": CAPACITY, "nows": STRIPE,
        "endgid": GROUP, "lbafs": FORMATS,
    },
    "smart-log": {
        "temperature": HEAT, "avail_spare": WEAR, "spare_thresh": WEAR, "power_cycles": WEAR,
        "data_units_read": READ, "host_read_commands": READ,
    },
    "fw-log": {"Firmware Rev Slot 1": SLOT},
    "error-log": {"entries": ERRORS},
    "effects-log": {
        "admin 0dh": ADMIN, "admin 15h": ATTACH, "admin 18h": ADMIN, "admin 19h": NOT_ADMIN,
        "admin 1ah": NOT_ADMIN, "admin 80h": FORMAT, "admin 81h": NOT_ADMIN,
        "admin 82h": NOT_ADMIN, "admin 84h": ADMIN, "io 00h": FLUSH, "io 04h": IO,
        "io 12h": NOT_IO, "io 19h": NOT_IO, "io 1dh": NOT_IO,
    },
    "get-feature": {"Number of Queues": QUEUES},
}  # fmt: skip
"""What the drive does, by structure and field."""
