"""Owns: a small drive with states that is served, and the words of a host that computes on it.
Does not own: the clients of the transports. Source: docs/computation.md; written from it, not with
the program's own words.
"""

import struct

import numpy as np

from ondie.emu.config.config import load_preset
from ondie.emu.drive import Drive
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.serve.served import ServedDrive
from ondie.emu.service import Service
from ondie.emu.states.resident import ResidentStates
from ondie.kernels import get

LEAVES = {
    "flash.channels": "2",
    "flash.dies_per_channel": "2",
    "flash.planes_per_die": "4",
    "flash.blocks_per_plane": "24",
    "flash.pages_per_block": "4",
    "flash.page": "4 KiB",
    "ftl.reservoir_fraction": "0.4",
    "ftl.over_provisioning": "0.4",
    "ftl.gc_low_blocks": "2",
    "ftl.trim_maps": "true",
    "ftl.mapping_unit": "4 KiB",
    "frontend.max_transfer": "128 KiB",
}
PARAMS = 40 * 1024 - 50
ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
NSID = 2
SET, UNSET, LOAD, ACTIVATE, ALLOCATE, FREE, COPY, EXECUTE, REPORT, FETCH, STORE = (
    0xA1, 0xA4, 0xA5, 0xA8, 0xB0, 0xC0, 0xD0, 0xE1, 0xE2, 0xF2, 0xF5,
)  # fmt: skip
FIELDS = {
    "step": 0, "done": 8, "stripes": 16, "params": 32, "granule": 40, "vectors": 48, "vsize": 56,
    "memory": 64, "used": 72, "time": 80, "updates": 88, "execs": 96, "instr": 104, "written": 112,
    "read": 120, "copied": 128, "last": 136,
}  # fmt: skip


def config(device="csd-pe", **changes):
    leaves = LEAVES | {name.replace("__", "."): str(value) for name, value in changes.items()}
    return load_preset(device, overrides=[f"{k}={v}" for k, v in leaves.items()])


class StatesDrive:
    """A drive with states behind a service, without a transport, and its weights as the kernel has
    them."""

    def __init__(self, op="adam", hyper=None, params=PARAMS, clock="virtual", store=None,
                 several=True, durability=None, scale=1.0, **changes):  # fmt: skip
        self.op, self.hyper = op, dict(hyper or ADAM)
        self.states = ResidentStates(config(**changes), op, params, self.hyper)
        self.drive = Drive(
            self.states.cfg, payload=True, reservoir=self.states.reservoir, store=store,
            durability=durability,
        )  # fmt: skip
        self.rng = np.random.default_rng(21)
        self.kernel = get(op, form="canonical")
        self.wanted = {
            name: np.abs(self.rng.normal(size=params)).astype(np.float32)
            for name in ("w", *self.kernel.states)
        }
        self.updates = 0
        self.states.create(self.drive, self.wanted)
        self.service = Service(self.drive, clock, scale)
        self.served = ServedDrive(self.drive, self.service)
        self.nvme = NvmeDrive(self.served, several_controllers=several, states=self.states)

    def close(self):
        self.nvme.close()
        self.service.close()
        self.drive.close()

    def gradient(self):
        return self.rng.normal(size=self.states.n_params).astype(np.float32)

    def by_kernel(self, gradient):
        """Let the kernel update the wanted vectors."""
        self.updates += 1
        self.kernel(
            self.wanted["w"], gradient, [self.wanted[name] for name in self.kernel.states],
            self.kernel.coefficients(self.hyper, self.updates),
        )  # fmt: skip

    def vectors(self, data):
        """Vectors by name in the bytes of namespace 2."""
        room = len(data) // len(self.wanted)
        size = 4 * self.states.n_params
        return {
            name: np.frombuffer(data[at * room : at * room + size], np.float32)
            for at, name in enumerate(self.wanted)
        }

    def same(self, data):
        """Compare the bytes of namespace 2 with the kernel's vectors, bit for bit."""
        for name, found in self.vectors(data).items():
            assert (found.view("u4") == self.wanted[name].view("u4")).all(), name


class ComputeHost:
    """Commands of a host. ``run``: (opcode, data, words) -> (status, dword 0); ``get``: (opcode,
    bytes, words) -> (status, data). ``most``: bytes of a transfer."""

    def __init__(self, run, get, most=1 << 17):
        self.run, self.get, self.most = run, get, most

    def ok(self, opcode, data=b"", **words):
        status, dword = self.run(opcode, data, **words)
        assert status == 0, hex(status)
        return dword

    def store(self, handle, data, offset=0):
        for at in range(0, len(data), self.most):
            part = data[at : at + self.most]
            place = offset + at
            self.ok(STORE, part, cdw10=handle, cdw11=len(part), cdw12=place & 0xFFFFFFFF)

    def fetch(self, handle, size, offset=0):
        out = b""
        while len(out) < size:
            count, place = min(self.most, size - len(out)), offset + len(out)
            status, data = self.get(FETCH, count, cdw10=handle, cdw11=count, cdw12=place)
            assert status == 0, hex(status)
            out += data
        return out

    def set(self, *ranges):
        """Create a set of (handle, offset, length)."""
        data = b"".join(struct.pack("<IIQQ8x", handle, 0, *rest) for handle, *rest in ranges)
        return self.ok(SET, data, cdw10=len(ranges))

    def execute(self, program, rsid, number=0, stop=0, data=b""):
        return self.run(EXECUTE, data, cdw10=program | rsid << 16, cdw11=len(data), cdw12=number,
                        cdw14=stop)  # fmt: skip

    def give(self, gradient):
        """Put a gradient into device memory; return its set."""
        handle = self.ok(ALLOCATE, cdw10=gradient.nbytes)
        self.store(handle, gradient.tobytes())
        return self.set((handle, 0, gradient.nbytes))

    def states(self, size):
        """The bytes of namespace 2."""
        out = b""
        while len(out) < size:
            count = min(self.most, size - len(out))
            status, data = self.get(2, count, cdw10=len(out) // 4096, cdw12=count // 4096 - 1)
            assert status == 0, hex(status)
            out += data
        return out

    def report(self):
        status, data = self.get(REPORT, 4096)
        assert status == 0, hex(status)
        found = {name: struct.unpack_from("<Q", data, at)[0] for name, at in FIELDS.items()}
        return found | dict(zip(("complete", "running", "recovered"), data[24:27], strict=True))

    def load(self, slot, element=4, instructions=(1, 1), fixed=0, read=0, written=0):
        data = struct.pack("<IIIIQII32x", 1, element, *instructions, fixed, read, written)
        self.ok(LOAD, data, cdw10=slot, cdw11=len(data))
        self.ok(ACTIVATE, cdw10=slot, cdw11=1)
