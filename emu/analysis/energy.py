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
DRIVE, HOST, COMPUTE = "drive", "host", "compute"


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


def components(cfg: Config, t: Totals, work: Work) -> list[Component]:
    """Return the components of a run, without those whose quantity is 0."""
    c = t.counters
    page = t.page_bytes * 8
    read = c["read_pages"] + c["gc_read_pages"] + c["merge_read_pages"] + c["map_read_pages"]
    read += c["bpr_pages"] + c["reservoir_read_pages"]
    read += c["retry_read_pages"] + c["soft_read_pages"] + c["fold_read_pages"]
    read += c["beside_pages"] + c["lifted_pages"]
    program = c["program_pages"] + c["gc_program_pages"] + c["failed_pages"] + c["bpp_pages"]
    program += c["map_program_pages"] + c["padding_pages"] + c["second_pass_pages"]
    program += c["fold_program_pages"] + c["stored_pages"] + c["kept_pages"] + c["landed_pages"]
    turned = c["turned_pages"] * page
    coded = (c["ecc_decoded_pages"] + c["ecc_encoded_pages"]) * t.page_bytes
    coded -= c["unasked_out_bytes"] + c["unasked_in_bytes"]
    die_coded = 0  # pages that pass through the on-die ECC
    if cfg.pe.protection == "on_die_ecc":
        die_coded = c["bpr_pages"] + c["bpp_pages"] + c["reservoir_read_pages"]
        die_coded += c["lifted_pages"] + c["landed_pages"]
    channel = t.bytes_by["channels in"] + t.bytes_by["channels out"]
    ports = 2 if cfg.link.uplink_bytes_per_s else 1
    tunnel = c["tunnel_wire_bytes"]
    link = (t.bytes_by["link down"] + t.bytes_by["link up"] + tunnel) * ports
    whole = sum(b - a for s in t.steps for a, b in [s["step"]])
    compute = sum(
        max((s[name][1] for name in ("forward", "backward") if name in s), default=s["step"][0])
        - s["step"][0]
        for s in t.steps
    )
    isp_busy = t.busy_sum_ps.get("ISP", 0)
    idle = max((whole - compute) * t.devices - isp_busy, 0)
    cores = max(cfg.isp.cores, 1)
    has_isp = cfg.isp.kind != "none"
    storage = "host.update_power" if work.host_updates else "host.wait_power"
    out = [
        Component("NAND read", DRIVE, "energy.nand_read", read * page),
        Component("NAND program", DRIVE, "energy.nand_program", program * page),
        Component("NAND erase", DRIVE, "energy.nand_erase", c["erased_blocks"] * t.block_bytes * 8),
        Component("channels", DRIVE, "energy.channel", channel * 8),
        Component("drive DRAM", DRIVE, "energy.dram", t.bytes_by["DRAM"] * 8),
        Component("ECC", DRIVE, "energy.ecc", coded * 8),
        Component("die ECC", DRIVE, "energy.pe_ecc", die_coded * page),
        Component("PE additions", DRIVE, "energy.pe_add", work.adds),
        Component("PE multiplications", DRIVE, "energy.pe_multiply", work.multiplies),
        Component("page registers", DRIVE, "energy.register", work.register_bits + 2 * turned),
        Component("die bus", DRIVE, "energy.pe_bus", work.die_bus_bits + turned),
        Component("cipher on the die", DRIVE, "energy.pe_cipher", work.pe_cipher_bits),
        Component("ISP busy", DRIVE, "energy.isp_core", isp_busy * cores),
        Component("ISP idle", DRIVE, "energy.isp_idle", idle if has_isp else 0),
        Component("controller", DRIVE, "energy.controller", (whole - compute) * t.devices),
        Component("PCIe", DRIVE, "link.energy", link * 8),
        Component("host DRAM", HOST, "host.dram_energy", work.host_dram_bits),
        Component("host power", HOST, storage, whole - compute),
        Component("host and accelerator power", COMPUTE, "host.compute_power", compute),
        Component("waiting controller", COMPUTE, "energy.controller", compute * t.devices),
    ]
    return [x for x in out if x.quantity]


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
        sum(p[0] for p in parts),
        sum(p[1] for p in parts),
        sum(p[2] for p in parts),
    )


def energy(cfg: Config, totals: Totals, work: Work) -> Energy:
    """Return the energy of a run; low and high take all constants at that end of their ranges."""
    parts = components(cfg, totals, work)
    joules = {p.name: p.joules(cfg) for p in parts}
    groups = {
        group: _sum([joules[p.name] for p in parts if p.group == group])
        for group in (DRIVE, HOST, COMPUTE)
    }
    return Energy(groups[DRIVE], groups[HOST], groups[COMPUTE], joules)
