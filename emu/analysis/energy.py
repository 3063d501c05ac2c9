"""Energy of a run: quantities times constants of the configuration, as low, typical and high.

Owns the energy components, and the quantity that is multiplied by the constant of each component.
Does not own the constants (presets) or the counts of a run (analysis/ledger.py).
Source: the presets' constants, each with a source. Array energy is charged per bit, never per
operation. Results are given with and without the host. Power by phase of the step:

    forward and backward   host.compute_power for host and accelerator together; idle power for the
                           drives
    other phases           host.update_power while the host's CPU computes, else host.wait_power;
                           host.accelerator_wait_power for the accelerator, which waits
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ondie.emu.config.config import Config
from ondie.emu.engine.core.counters import PROGRAMMED as PROGRAMMED
from ondie.emu.engine.core.counters import SENSED as SENSED
from ondie.emu.engine.core.totals import Totals
from ondie.emu.nand.ecc import charged_ps
from ondie.emu.nand.geometry import Geometry
from ondie.emu.paths.statement import Work

FJ_PER_J = 1e15
DRIVE_PART, HOST_PART, COMPUTE_PART = "drive", "host", "compute"
HOST_BUSY, HOST_WAITING = "host busy", "host waiting"
"""Names of the components of the host's energy, excluding forward and backward."""
ACCELERATOR_WAITING = "accelerator waiting"
DRIVES_IN_TRAINING = ("ISP training", "waiting ISP", "waiting controller")
"""Names of the components of the drives' energy during forward and backward. They belong to the
group COMPUTE_PART."""

PRICES = frozenset(
    (
        "host.update_power",
        "host.wait_power",
        "host.compute_power",
        "host.accelerator_wait_power",
        "host.dram_energy",
        "link.energy",
    )
)


def is_price(key: str) -> bool:
    """Return True if a configuration key is an energy constant or a power, neither of which affects
    time."""
    return key.startswith("energy.") or key in PRICES


@dataclass(frozen=True)
class Component:
    """Energy of one component: ``quantity`` times the value of the configuration key ``key``, in
    fJ: ps x mW, bits x fJ/bit, or operations x fJ/operation. ``group``: DRIVE_PART, HOST_PART or
    COMPUTE_PART, for the field of Energy (drive, host, compute) that includes the component."""

    name: str
    group: str
    key: str
    quantity: int

    def joules(self, cfg: Config) -> tuple[float, float, float]:
        """Return the energy of this component in J: (low, typical, high)."""
        low, typical, high = bounds(cfg, self.key)
        return (
            self.quantity * low / FJ_PER_J,
            self.quantity * typical / FJ_PER_J,
            self.quantity * high / FJ_PER_J,
        )


def bounds(cfg: Config, key: str) -> tuple[float, float, float]:
    """Return the (low, typical, high) values of a configuration key, in its base unit; three equal
    values if the key has no range."""
    leaf = cfg.leaf(key)
    value = float(leaf.value)
    if leaf.low is None or leaf.high is None:
        return value, value, value
    return float(leaf.low), value, float(leaf.high)


@dataclass(frozen=True)
class Times:
    """Durations in ps by which the configured powers are multiplied to compute the energy of a
    run."""

    training: int
    """Time from the start of a step to the end of its forward and backward, summed over the steps,
    ps."""
    rest: int
    """Time from the end of forward and backward to the end of the step, summed over the steps,
    ps."""
    cpu_busy: int
    """Time outside forward and backward in which the host's CPU computes, ps; all time outside
    forward and backward if the power of the busy host is an average over whole steps
    (``Work.average_power``)."""
    isp_training: int
    """Busy time of the in-storage processors in forward and backward, summed over drives, ps."""
    isp_rest: int
    """Busy time of the in-storage processors outside forward and backward, summed over drives,
    ps."""


TRAINING = ("forward", "backward")
"""Names of the phases in which the accelerator computes."""


def times(totals: Totals, work: Work) -> Times:
    """Return the durations to which the powers of a run apply.

    A system has one host CPU, which runs one job at a time. Its busy time is therefore the sum of
    the durations of its jobs, without jobs of the forward and backward passes. If the power of the
    busy host is an average over whole steps (``work.average_power``), the busy time is all time
    outside forward and backward.
    """
    whole = training = 0
    for spans in totals.steps:
        start, stop = spans["step"]
        ends = [spans[name][1] for name in TRAINING if name in spans]
        whole += stop - start
        training += max(ends, default=start) - start
    worked = totals.worked_ps
    cpu = sum(
        ps for (phase, name), ps in worked.items() if name == "host CPU" and phase not in TRAINING
    )
    rest = whole - training
    isp_training = sum(worked.get((phase, "ISP"), 0) for phase in TRAINING)
    isp_rest = totals.busy_sum_ps.get("ISP", 0) - isp_training
    busy = rest if work.average_power else min(cpu, rest)
    return Times(training, rest, busy, isp_training, isp_rest)


def coded_bytes(counters: Mapping[str, int], page_bytes: int) -> int:
    """Return the total number of bytes that the controller's ECC encodes or decodes."""
    coded = (counters["ecc_decoded_pages"] + counters["ecc_encoded_pages"]) * page_bytes
    return coded - counters["unasked_out_bytes"] - counters["unasked_in_bytes"]


def replay_energy(
    cfg: Config, counters: Mapping[str, int], moved: Mapping[str, int], ps: int
) -> dict[str, float]:
    """Return the energy of a drive during a replay, in J, by configuration key of the energy
    constant. All constants have their typical values.

    ``counters``: counters of the drive. ``moved``: bytes transferred, by resource
    (replay/block_trace.py). ``ps``: duration of the replay in ps.
    """
    geometry = Geometry.of(cfg)
    page = geometry.page_bytes * 8
    block = geometry.pages * geometry.slots * page
    quantities = {
        "energy.nand_read": sum(counters[name] for name in SENSED) * page,
        "energy.nand_program": sum(counters[name] for name in PROGRAMMED) * page,
        "energy.nand_erase": counters["erased_blocks"] * block,
        "energy.channel": moved["channels"] * 8,
        "energy.dram": moved["DRAM"] * 8,
        "energy.ecc": coded_bytes(counters, geometry.page_bytes) * 8,
        "energy.ecc_decoder": charged_ps(cfg, counters),
        "energy.controller": ps,
        "link.energy": (moved["link down"] + moved["link up"]) * 8,
    }
    if not quantities["energy.ecc_decoder"]:
        del quantities["energy.ecc_decoder"]
    return {key: bounds(cfg, key)[1] * amount / FJ_PER_J for key, amount in quantities.items()}


def components(cfg: Config, totals: Totals, work: Work) -> list[Component]:
    """Return the energy components of a run, without those whose quantity is 0. ``work``: work of
    the path that the drives' counters do not contain."""
    counters = totals.counters
    page = totals.page_bytes * 8
    read = sum(counters[name] for name in SENSED)
    program = sum(counters[name] for name in PROGRAMMED)
    turned = counters["turned_pages"] * page
    coded = coded_bytes(counters, totals.page_bytes)
    die_coded = 0  # pages that pass through the on-die ECC
    if cfg.pe.protection == "on_die_ecc":
        die_coded = counters["bpr_pages"] + counters["bpp_pages"] + counters["reservoir_read_pages"]
        die_coded += counters["lifted_pages"] + counters["landed_pages"]
    channel = totals.bytes_by["channels in"] + totals.bytes_by["channels out"]
    ports = 2 if cfg.link.uplink_bytes_per_s else 1
    tunnel = counters["tunnel_wire_bytes"]
    link = (totals.bytes_by["link down"] + totals.bytes_by["link up"] + tunnel) * ports
    spent = times(totals, work)
    training, rest, devices = spent.training, spent.rest, totals.devices
    cores = max(cfg.isp.cores, 1)
    idle = max(rest * devices - spent.isp_rest, 0)
    waiting = max(training * devices - spent.isp_training, 0)
    if cfg.isp.kind == "none":
        idle = waiting = 0
    out = [
        Component("NAND read", DRIVE_PART, "energy.nand_read", read * page),
        Component("NAND program", DRIVE_PART, "energy.nand_program", program * page),
        Component(
            "NAND erase",
            DRIVE_PART,
            "energy.nand_erase",
            counters["erased_blocks"] * totals.block_bytes * 8,
        ),
        Component("channels", DRIVE_PART, "energy.channel", channel * 8),
        Component("drive DRAM", DRIVE_PART, "energy.dram", totals.bytes_by["DRAM"] * 8),
        Component("ECC", DRIVE_PART, "energy.ecc", coded * 8),
        Component("ECC iterations", DRIVE_PART, "energy.ecc_decoder", charged_ps(cfg, counters)),
        Component("die ECC", DRIVE_PART, "energy.pe_ecc", die_coded * page),
        Component("PE additions", DRIVE_PART, "energy.pe_add", work.adds),
        Component("PE multiplications", DRIVE_PART, "energy.pe_multiply", work.multiplies),
        Component("page registers", DRIVE_PART, "energy.register", work.register_bits + 2 * turned),
        Component("die bus", DRIVE_PART, "energy.pe_bus", work.die_bus_bits + turned),
        Component("cipher on the die", DRIVE_PART, "energy.pe_cipher", work.pe_cipher_bits),
        Component("ISP busy", DRIVE_PART, "energy.isp_core", spent.isp_rest * cores),
        Component("ISP idle", DRIVE_PART, "energy.isp_idle", idle),
        Component("controller", DRIVE_PART, "energy.controller", rest * devices),
        Component("PCIe", DRIVE_PART, "link.energy", link * 8),
        Component("host DRAM", HOST_PART, "host.dram_energy", work.host_dram_bytes * 8),
        Component(HOST_BUSY, HOST_PART, "host.update_power", spent.cpu_busy),
        Component(HOST_WAITING, HOST_PART, "host.wait_power", rest - spent.cpu_busy),
        Component(ACCELERATOR_WAITING, HOST_PART, "host.accelerator_wait_power", rest),
        Component("host and accelerator power", COMPUTE_PART, "host.compute_power", training),
        Component("ISP training", COMPUTE_PART, "energy.isp_core", spent.isp_training * cores),
        Component("waiting ISP", COMPUTE_PART, "energy.isp_idle", waiting),
        Component("waiting controller", COMPUTE_PART, "energy.controller", training * devices),
    ]
    return [component for component in out if component.quantity]


@dataclass(frozen=True)
class Energy:
    """Energy of a run of one path by group of components, in J: (low, typical, high)."""

    drive: tuple[float, float, float]
    """Energy of the drives' operations and transfers, plus the energy of their controllers and
    in-storage processors excluding forward and backward, J: (low, typical, high)."""
    host: tuple[float, float, float]
    """Energy of host DRAM, plus the energy of the host and of the waiting accelerator excluding
    forward and backward, J: (low, typical, high)."""
    compute: tuple[float, float, float]
    """Energy of host, accelerator and drives during forward and backward, J: (low, typical, high).
    Excludes the energy of data transfers, which ``drive`` and ``host`` include."""
    by_component: Mapping[str, tuple[float, float, float]]
    """Energy of each component, by component name, J: (low, typical, high)."""

    @property
    def drives(self) -> tuple[float, float, float]:
        """Energy of the drives in J, including forward and backward: (low, typical, high)."""
        found = [span for name, span in self.by_component.items() if name in DRIVES_IN_TRAINING]
        return _sum([self.drive, *found])

    @property
    def storage_and_host(self) -> tuple[float, float, float]:
        """Energy of drives and host in J, excluding forward and backward: (low, typical, high)."""
        return _sum([self.drive, self.host])

    @property
    def all(self) -> tuple[float, float, float]:
        """Energy of drives, host and accelerator in J, including forward and backward: (low,
        typical, high)."""
        return _sum([self.drive, self.host, self.compute])


def _sum(parts: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    return (
        sum(part[0] for part in parts),
        sum(part[1] for part in parts),
        sum(part[2] for part in parts),
    )


def energy(cfg: Config, totals: Totals, work: Work) -> Energy:
    """Return the energy of a run. For the low (high) energy, all constants are at the low (high)
    end of their ranges."""
    parts = components(cfg, totals, work)
    joules = {part.name: part.joules(cfg) for part in parts}
    groups = {
        group: _sum([joules[part.name] for part in parts if part.group == group])
        for group in (DRIVE_PART, HOST_PART, COMPUTE_PART)
    }
    return Energy(groups[DRIVE_PART], groups[HOST_PART], groups[COMPUTE_PART], joules)
