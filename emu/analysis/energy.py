"""Energy of a run: quantities times constants of the configuration, as low, typical and high.

Owns the components and the quantity that each is charged for. Does not own the constants (presets)
or the quantities (analysis/ledger.py).
Source: the presets' constants, each with a source. Array energy is charged per bit, never per
operation. Host power depends on the phase. Results are given with and without the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ondie.emu.config.config import Config
from ondie.emu.engine.core.totals import Totals
from ondie.emu.paths.statement import Work

FJ_PER_J = 1e15
DRIVE_PART, HOST_PART, COMPUTE_PART = "drive", "host", "compute"


PRICES = frozenset(
    (
        "host.update_power",
        "host.wait_power",
        "host.compute_power",
        "host.dram_energy",
        "link.energy",
    )
)


def is_price(key: str) -> bool:
    """Return True if a leaf is an energy constant or a power that has no effect on time."""
    return key.startswith("energy.") or key in PRICES


@dataclass(frozen=True)
class Component:
    """Energy of one component: quantity x constant. mW x ps = fJ, bits x fJ/bit = fJ."""

    name: str
    group: str
    key: str
    quantity: int

    def joules(self, cfg: Config) -> tuple[float, float, float]:
        """Return the energy as (low, typical, high) in J."""
        low, typical, high = bounds(cfg, self.key)
        return (
            self.quantity * low / FJ_PER_J,
            self.quantity * typical / FJ_PER_J,
            self.quantity * high / FJ_PER_J,
        )


def bounds(cfg: Config, key: str) -> tuple[float, float, float]:
    """Return (low, value, high) of a leaf; the value three times if the leaf has no range."""
    leaf = cfg.leaf(key)
    value = float(leaf.value)
    if leaf.low is None or leaf.high is None:
        return value, value, value
    return float(leaf.low), value, float(leaf.high)


def components(cfg: Config, totals: Totals, work: Work) -> list[Component]:
    """Return the components of a run, without those whose quantity is 0."""
    counters = totals.counters
    page = totals.page_bytes * 8
    read = (
        counters["read_pages"]
        + counters["gc_read_pages"]
        + counters["merge_read_pages"]
        + counters["map_read_pages"]
    )
    read += counters["bpr_pages"] + counters["reservoir_read_pages"]
    read += counters["retry_read_pages"] + counters["soft_read_pages"] + counters["fold_read_pages"]
    read += counters["beside_pages"] + counters["lifted_pages"]
    program = (
        counters["program_pages"]
        + counters["gc_program_pages"]
        + counters["failed_pages"]
        + counters["bpp_pages"]
    )
    program += (
        counters["map_program_pages"] + counters["padding_pages"] + counters["second_pass_pages"]
    )
    program += (
        counters["fold_program_pages"]
        + counters["stored_pages"]
        + counters["kept_pages"]
        + counters["landed_pages"]
    )
    turned = counters["turned_pages"] * page
    coded = (counters["ecc_decoded_pages"] + counters["ecc_encoded_pages"]) * totals.page_bytes
    coded -= counters["unasked_out_bytes"] + counters["unasked_in_bytes"]
    die_coded = 0  # pages that pass through the on-die ECC
    if cfg.pe.protection == "on_die_ecc":
        die_coded = counters["bpr_pages"] + counters["bpp_pages"] + counters["reservoir_read_pages"]
        die_coded += counters["lifted_pages"] + counters["landed_pages"]
    channel = totals.bytes_by["channels in"] + totals.bytes_by["channels out"]
    ports = 2 if cfg.link.uplink_bytes_per_s else 1
    tunnel = counters["tunnel_wire_bytes"]
    link = (totals.bytes_by["link down"] + totals.bytes_by["link up"] + tunnel) * ports
    whole = sum(stop - start for spans in totals.steps for start, stop in [spans["step"]])
    compute = sum(
        max(
            (spans[name][1] for name in ("forward", "backward") if name in spans),
            default=spans["step"][0],
        )
        - spans["step"][0]
        for spans in totals.steps
    )
    isp_busy = totals.busy_sum_ps.get("ISP", 0)
    idle = max((whole - compute) * totals.devices - isp_busy, 0)
    cores = max(cfg.isp.cores, 1)
    has_isp = cfg.isp.kind != "none"
    storage = "host.update_power" if work.host_updates else "host.wait_power"
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
        Component("die ECC", DRIVE_PART, "energy.pe_ecc", die_coded * page),
        Component("PE additions", DRIVE_PART, "energy.pe_add", work.adds),
        Component("PE multiplications", DRIVE_PART, "energy.pe_multiply", work.multiplies),
        Component("page registers", DRIVE_PART, "energy.register", work.register_bits + 2 * turned),
        Component("die bus", DRIVE_PART, "energy.pe_bus", work.die_bus_bits + turned),
        Component("cipher on the die", DRIVE_PART, "energy.pe_cipher", work.pe_cipher_bits),
        Component("ISP busy", DRIVE_PART, "energy.isp_core", isp_busy * cores),
        Component("ISP idle", DRIVE_PART, "energy.isp_idle", idle if has_isp else 0),
        Component(
            "controller", DRIVE_PART, "energy.controller", (whole - compute) * totals.devices
        ),
        Component("PCIe", DRIVE_PART, "link.energy", link * 8),
        Component("host DRAM", HOST_PART, "host.dram_energy", work.host_dram_bits),
        Component("host power", HOST_PART, storage, whole - compute),
        Component("host and accelerator power", COMPUTE_PART, "host.compute_power", compute),
        Component(
            "waiting controller", COMPUTE_PART, "energy.controller", compute * totals.devices
        ),
    ]
    return [component for component in out if component.quantity]


@dataclass(frozen=True)
class Energy:
    """Joules of a run as (low, typical, high)."""

    drive: tuple[float, float, float]
    """The drive's operations and transfers, and its idle power outside forward and backward."""
    host: tuple[float, float, float]
    """Host DRAM, and the host's power outside forward and backward."""
    compute: tuple[float, float, float]
    """Host, accelerator and drive controller during forward and backward."""
    by_component: Mapping[str, tuple[float, float, float]]

    @property
    def storage_and_host(self) -> tuple[float, float, float]:
        """Energy of drive and host outside forward and backward."""
        return _sum([self.drive, self.host])

    @property
    def all(self) -> tuple[float, float, float]:
        """Energy of all groups, including forward and backward."""
        return _sum([self.drive, self.host, self.compute])


def _sum(parts: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    return (
        sum(part[0] for part in parts),
        sum(part[1] for part in parts),
        sum(part[2] for part in parts),
    )


def energy(cfg: Config, totals: Totals, work: Work) -> Energy:
    """Return the energy of a run; low and high take all constants at that end of their ranges."""
    parts = components(cfg, totals, work)
    joules = {part.name: part.joules(cfg) for part in parts}
    groups = {
        group: _sum([joules[part.name] for part in parts if part.group == group])
        for group in (DRIVE_PART, HOST_PART, COMPUTE_PART)
    }
    return Energy(groups[DRIVE_PART], groups[HOST_PART], groups[COMPUTE_PART], joules)
