"""Closed forms: duration of each path's update stage if only the bottleneck took time.

Owns the arithmetic that is printed next to the simulated result. Does not own the simulation
(engine/), and takes no value from it: compute times are calculated here from published rates and
pass counts. Where that is not possible, the text of a bound says that it shares the compute model.
Source: serial T = N(16/R + 12/W + 1/c) for ZeRO-Infinity's order; for OptimStore C-ISP channels x
rate / 24 B, and stripe time tR + passes x page/bus + tPROG + (lockstep) dies x page/bus.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction

from ondie.emu.config.config import Config
from ondie.emu.nand.geometry import Geometry
from ondie.emu.nand.timing import word_line_pages
from ondie.emu.paths.layout.regions import Stripes
from ondie.emu.units import fmt_time


@dataclass(frozen=True)
class Bound:
    """Closed form of an update stage: seconds, the bottleneck resource, the arithmetic in words."""

    seconds: float
    name: str
    text: str

    def sharing(self, shared: bool) -> Bound:
        """Return this bound, marked if it has the simulation's compute time (``shared``)."""
        return replace(self, text=f"{self.text}; {SHARES}") if shared else self


SHARES = "shares the compute model"
"""Mark of a bound that contains a time computed by the simulation's compute model."""
HOST_ADAM_BYTES = 28
"""Bytes per parameter of an Adam update, whose rate is host.adam: w m v g in, w m v out."""
PE_PASSES = {"adam": 5, "adamw": 5, "momentum": 2, "nesterov": 3, "adagrad": 4, "sgd": 1}
"""Vector passes of an update on the die (OptimStore, HPCA 2023; Adam: LVS, QVS, ISQRT, VMUL,
LVS)."""


def host_update_s(cfg: Config, params: int, traffic: Fraction | int) -> float:
    """Return the time of an update on the host's CPU: its bytes at the rate of Adam or of DRAM."""
    rate = min(HOST_ADAM_BYTES * cfg.host.adam_params_per_s, cfg.host.dram_bandwidth_bytes_per_s)
    return params * float(traffic) / rate


def engine_s(cfg: Config, params: int, traffic: Fraction | int) -> float | None:
    """Return the time of an update in a streaming engine; None for cores, whose instruction counts
    only the compute model has."""
    if cfg.isp.kind != "fpga":
        return None
    return params * float(traffic) / cfg.isp.engine_bytes_per_s


def pe_passes_s(cfg: Config, op: str, coupled_decay: bool, stripes: Stripes) -> float | None:
    """Return the time of a stripe's vector passes: passes x page / bus. None if values are narrow,
    the die's bus has fewer lanes than groups, or the die does other work on the pages."""
    plain = cfg.pe.randomiser != "die" and cfg.pe.integrity != "die" and cfg.pe.cipher != "die"
    if stripes.dtype.itemsize != 4 or cfg.pe.bus_values < stripes.groups or not plain:
        return None
    passes = PE_PASSES[op] + (coupled_decay and op != "adamw")
    page_s = cfg.flash.page_bytes / cfg.flash.bus_bytes_per_s
    return passes * page_s * cfg.pe.clock_divider / 4


class Demand:
    """Seconds of work per resource of one device, for stages whose parts overlap perfectly."""

    def __init__(self, cfg: Config, handles: float | None = None) -> None:
        """Start with no work. ``handles``: blocks in flight on each drive through a handle for
        reads, and as many through one for writes; None: one queue for both."""
        self.cfg = cfg
        self.handles = handles
        self.geometry = Geometry.of(cfg)
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] += seconds

    @property
    def largest(self) -> tuple[str, float]:
        """(resource, seconds) of the resource with the most work."""
        return max(self.seconds.items(), key=lambda item: item[1])

    def _page_s(self) -> float:
        """Return the channel time of one page and its command, seconds."""
        return self.cfg.flash.t_command_ps / 1e12 + self._data_s()

    def _data_s(self) -> float:
        return self.cfg.flash.page_bytes / self.cfg.flash.bus_bytes_per_s

    def flash_read(self, n_bytes: float) -> None:
        """Add page reads through channel and decoder."""
        geometry, flash = self.geometry, self.cfg.flash
        pages = n_bytes / flash.page_bytes
        together = geometry.planes if flash.multi_plane else 1
        array = flash.t_read_ps / 1e12
        if not flash.cache_read:
            array += together * self._page_s()
        self.add("channels", pages * self._page_s() / geometry.channels)
        self.add("dies", pages / together * array / geometry.dies)
        self.add("ECC", pages * self.cfg.ecc.decode_ps / 1e12 / geometry.channels)

    def flash_write(self, n_bytes: float) -> None:
        """Add page programs through encoder and channel; with ftl.initial = steady, each block is
        erased before it is written."""
        geometry, flash = self.geometry, self.cfg.flash
        pages = n_bytes / flash.page_bytes
        together = geometry.planes if flash.multi_plane else 1
        line, passes = word_line_pages(self.cfg), 2 if flash.programming == "two_pass" else 1
        array = self._program_ps() / 1e12
        if not flash.cache_program:
            array += passes * line * together * self._page_s()
        erase = (
            flash.t_erase_ps / 1e12 / geometry.pages if self.cfg.ftl.initial == "steady" else 0.0
        )
        self.add("channels", passes * pages * self._page_s() / geometry.channels)
        self.add(
            "dies",
            (pages / together / line * array + pages / geometry.planes * erase) / geometry.dies,
        )
        self.add("ECC", pages * self.cfg.ecc.encode_ps / 1e12 / geometry.channels)

    def host_commands(self, n_bytes: float) -> None:
        """Add host commands of the host's block size."""
        blocks = n_bytes / self.cfg.host.io_block_bytes
        self.add("front end", blocks * self.cfg.frontend.command_ps / 1e12)
        one_thread = blocks * self.cfg.system.devices
        self.add("host submission", one_thread * self.cfg.host.io_submit_ps / 1e12)

    def link(self, way: str, n_bytes: float) -> None:
        """Add each device's bytes on its link, and those of all devices on a shared uplink."""
        link = self.cfg.link
        rate = link.up_bytes_per_s if way == "up" else link.down_bytes_per_s
        self.add(f"link {way}", n_bytes / rate)
        if link.uplink_bytes_per_s:
            devices = self.cfg.system.devices
            self.add(f"uplink {way}", n_bytes * devices / link.uplink_bytes_per_s)

    def dram(self, n_bytes: float) -> None:
        self.add("DRAM", n_bytes / self.cfg.dram.bandwidth_bytes_per_s)

    def host_read(self, n_bytes: float) -> None:
        """Add host reads: flash, twice through DRAM, up the link."""
        self.flash_read(n_bytes)
        self.dram(2 * n_bytes)
        self.link("up", n_bytes)
        self.host_commands(n_bytes)
        self._depth("reads", n_bytes, self.read_latency())

    def host_write(self, n_bytes: float) -> None:
        """Add host writes: down the link, twice through DRAM, flash."""
        self.flash_write(n_bytes)
        self.dram(2 * n_bytes)
        self.link("down", n_bytes)
        self.host_commands(n_bytes)
        self._depth("writes", n_bytes, self.write_latency())

    def _depth(self, what: str, n_bytes: float, latency: float) -> None:
        """Add the limit by queue depth: each block in flight takes at least its unloaded
        latency."""
        blocks = n_bytes / self.cfg.host.io_block_bytes
        if self.handles is not None and self.cfg.frontend.queue_depth > 1:
            self.add(f"queue depth of {what}", blocks / self.handles * latency)
        else:
            depth = min(self.cfg.host.io_queue_depth, self.cfg.frontend.queue_depth)
            self.add("queue depth", blocks / depth * latency)

    def _fixed_s(self) -> float:
        """Return the submission, link (both ways) and firmware time of one command, seconds."""
        host, front = self.cfg.host.io_submit_ps, self.cfg.frontend.command_ps
        return (host + front + 2 * self.cfg.link.latency_ps) / 1e12

    def _program_ps(self) -> int:
        """Return the array time to program a page or word line, in one or both passes, ps."""
        flash = self.cfg.flash
        second = flash.t_program_second_ps if flash.programming == "two_pass" else 0
        return flash.t_program_ps + second

    def _block_s(self, array_ps: int, link_rate: int, line: int = 1) -> float:
        """Return the unloaded latency of one block, seconds: consecutive array operations on its
        busiest die, ``line`` page offsets each, then the slower of channel and link."""
        geometry = self.geometry
        block = self.cfg.host.io_block_bytes
        pages = block / self.cfg.flash.page_bytes
        groups = pages / (geometry.planes if self.cfg.flash.multi_plane else 1) / line
        channel = max(pages / geometry.channels, min(pages, geometry.planes)) * self._page_s()
        rounds = max(groups / geometry.dies, 1.0)
        return self._fixed_s() + rounds * array_ps / 1e12 + max(channel, block / link_rate)

    def read_latency(self) -> float:
        """Return the unloaded latency of one block read, seconds."""
        return self._block_s(self.cfg.flash.t_read_ps, self.cfg.link.up_bytes_per_s)

    def write_latency(self) -> float:
        """Return the unloaded latency of one block write, seconds."""
        line = word_line_pages(self.cfg)
        return self._block_s(self._program_ps(), self.cfg.link.down_bytes_per_s, line)

    def first_read(self) -> float:
        """Return the time until the transfer of the first super-page of a read stream starts,
        seconds."""
        return self._fixed_s() + self.cfg.flash.t_read_ps / 1e12

    def last_write(self) -> float:
        """Return the time that a write stream takes in addition to its transfers, seconds."""
        return self._fixed_s() + self._program_ps() / 1e12


def isp_path(demand: Demand, read: float, written: float) -> None:
    """Add reads and writes of an in-storage processor on its path to the flash back end."""
    isp = demand.cfg.isp
    if isp.flash_write_bytes_per_s:
        demand.add("ISP flash path", read / isp.flash_bytes_per_s)
        demand.add("ISP flash writes", written / isp.flash_write_bytes_per_s)
    else:
        demand.add("ISP flash path", (read + written) / isp.flash_bytes_per_s)


def handle_depth(cfg: Config) -> int:
    """Return the blocks in flight for reads, and for writes, where each has a separate handle."""
    return max(min(cfg.host.io_queue_depth, cfg.frontend.queue_depth // 2), 1)


def with_latency(name: str, work: float, latency: float, text: str) -> Bound:
    """Return a bound of work plus latency, named "latency" if latency is the larger part."""
    name = "latency" if latency > work else name
    return Bound(work + latency, name, f"{text} + latency {words(latency)}")


def parts_text(parts: list[tuple[str, str, float]]) -> str:
    """Format (what, resource, seconds) as "read 2.5 s (channels) + CPU 1 s (host CPU)"."""
    return " + ".join(f"{what} {words(seconds)} ({name})" for what, name, seconds in parts)


def words(seconds: float) -> str:
    """Format seconds with three digits and a suitable unit."""
    return fmt_time(seconds * 1e12)
