"""Closed forms: duration of each path's update stage if only the bottleneck took time.

Owns the arithmetic that is printed next to the simulated result. Does not own the simulation
(engine/), and uses no simulated result. Compute times are calculated here from published rates and
pass counts. If this is not possible, the compute model (compute/) supplies the time, and the text
of the bound states this.
Source: ZeRO-Infinity's order without overlap: time = N (16 / R + 12 / W + 1 / c), for N parameters,
read rate R and write rate W (B/s), and c parameter updates per second. OptimStore: with Adam, C-ISP
updates (channels x channel rate) / 24 B parameters per second. An on-die update with lockstep
dispatch takes tR + passes x P + tPROG + (dies per channel) x P per stripe, with P = page size / bus
rate.
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
    """Closed-form bound on the duration of an update stage: duration (s), name of the bottleneck
    resource, and the calculation as text."""

    seconds: float
    name: str
    text: str

    def sharing(self, shared: bool) -> Bound:
        """Return this bound. If ``shared`` is True, append the note SHARES to its text, because the
        bound contains a time from the simulation's compute model."""
        return replace(self, text=f"{self.text}; {SHARES}") if shared else self


SHARES = "uses the simulation's compute model"
"""Text that marks a bound as containing a time from the simulation's compute model."""
HOST_ADAM_BYTES = 28
"""Number of bytes that an Adam update moves per parameter at the rate host.adam: w, m, v, g read
and w, m, v written, 4 B each."""
PE_PASSES = {"adam": 5, "adamw": 5, "momentum": 2, "nesterov": 3, "adagrad": 4, "sgd": 1}
"""Number of vector passes of an on-die update by optimizer (OptimStore, HPCA 2023). The passes of
Adam are LVS, QVS, ISQRT, VMUL, LVS."""


def host_update_s(cfg: Config, params: int, traffic: Fraction | int) -> float:
    """Return the time of an update of ``params`` parameters on the host's CPU, seconds.
    ``traffic``: DRAM bytes per parameter. The bandwidth is the lower of two: the bandwidth of an
    Adam update at rate host.adam, and the bandwidth of the DRAM."""
    rate = min(HOST_ADAM_BYTES * cfg.host.adam_params_per_s, cfg.host.dram_bandwidth_bytes_per_s)
    return params * float(traffic) / rate


def engine_s(cfg: Config, params: int, traffic: Fraction | int) -> float | None:
    """Return the time of an update in a streaming engine, seconds. Return None for processor cores,
    because only the compute model has their instruction counts. ``traffic``: DRAM bytes per
    parameter."""
    if cfg.isp.kind != "fpga":
        return None
    return params * float(traffic) / cfg.isp.engine_bytes_per_s


def pe_passes_s(cfg: Config, op: str, coupled_decay: bool, stripes: Stripes) -> float | None:
    """Return the time of the vector passes over a stripe, seconds: passes x page bytes / bus rate.
    Return None if the values are narrower than 32 bits, if the die's bus carries fewer values per
    PE clock than the stripe has pages per vector, or if the die also randomizes, checks or encrypts
    the pages."""
    plain = cfg.pe.randomiser != "die" and cfg.pe.integrity != "die" and cfg.pe.cipher != "die"
    if stripes.dtype.itemsize != 4 or cfg.pe.bus_values < stripes.groups or not plain:
        return None
    passes = PE_PASSES[op] + (coupled_decay and op != "adamw")
    page_s = cfg.flash.page_bytes / cfg.flash.bus_bytes_per_s
    return passes * page_s * cfg.pe.clock_divider / 4


class Demand:
    """Seconds of work per resource of one device, for stages whose operations overlap
    completely."""

    def __init__(self, cfg: Config, handles: float | None = None) -> None:
        """Start with zero seconds for every resource. ``handles``: number of blocks in flight on
        each drive per asynchronous I/O handle, if reads and writes use separate handles. None if
        reads and writes share one queue."""
        self.cfg = cfg
        self.handles = handles
        self.geometry = Geometry.of(cfg)
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] += seconds

    @property
    def largest(self) -> tuple[str, float]:
        """(name, seconds of work) of the resource with the most work."""
        return max(self.seconds.items(), key=lambda item: item[1])

    def _page_s(self) -> float:
        """Return the time for which a page and its command occupy the channel, seconds."""
        return self.cfg.flash.t_command_ps / 1e12 + self._data_s()

    def _data_s(self) -> float:
        return self.cfg.flash.page_bytes / self.cfg.flash.bus_bytes_per_s

    def flash_read(self, n_bytes: float) -> None:
        """Add the work of reading ``n_bytes`` from flash: dies, channels and ECC decoders."""
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
        """Add the work of programming ``n_bytes`` to flash: ECC encoders, channels and dies. With
        ftl.initial = steady, the dies also erase each block."""
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
        """Add the work of the host commands that transfer ``n_bytes`` in host blocks: submission
        on the host and the drive's front end."""
        blocks = n_bytes / self.cfg.host.io_block_bytes
        self.add("front end", blocks * self.cfg.frontend.command_ps / 1e12)
        one_thread = blocks * self.cfg.system.devices
        self.add("host submission", one_thread * self.cfg.host.io_submit_ps / 1e12)

    def link(self, way: str, n_bytes: float) -> None:
        """Add the transfer of ``n_bytes`` per device to the device's link (``way``: "up" or
        "down"). If the devices share an uplink, add the bytes of all devices to the uplink."""
        link = self.cfg.link
        rate = link.up_bytes_per_s if way == "up" else link.down_bytes_per_s
        self.add(f"link {way}", n_bytes / rate)
        if link.uplink_bytes_per_s:
            devices = self.cfg.system.devices
            self.add(f"uplink {way}", n_bytes * devices / link.uplink_bytes_per_s)

    def dram(self, n_bytes: float) -> None:
        self.add("DRAM", n_bytes / self.cfg.dram.bandwidth_bytes_per_s)

    def host_read(self, n_bytes: float) -> None:
        """Add the work of host reads of ``n_bytes``: flash, two passes through the drive's DRAM,
        the link to the host, commands, and the limit set by the queue depth."""
        self.flash_read(n_bytes)
        self.dram(2 * n_bytes)
        self.link("up", n_bytes)
        self.host_commands(n_bytes)
        self._depth("reads", n_bytes, self.read_latency())

    def host_write(self, n_bytes: float) -> None:
        """Add the work of host writes of ``n_bytes``: the link from the host, two passes through
        the drive's DRAM, flash, commands, and the limit set by the queue depth."""
        self.flash_write(n_bytes)
        self.dram(2 * n_bytes)
        self.link("down", n_bytes)
        self.host_commands(n_bytes)
        self._depth("writes", n_bytes, self.write_latency())

    def _depth(self, what: str, n_bytes: float, latency: float) -> None:
        """Add the minimum time for ``n_bytes`` at the queue depth, if each block takes ``latency``,
        the unloaded latency of a block in seconds. ``what``: "reads" or "writes"."""
        blocks = n_bytes / self.cfg.host.io_block_bytes
        if self.handles is not None and self.cfg.frontend.queue_depth > 1:
            self.add(f"queue depth of {what}", blocks / self.handles * latency)
        else:
            depth = min(self.cfg.host.io_queue_depth, self.cfg.frontend.queue_depth)
            self.add("queue depth", blocks / depth * latency)

    def _fixed_s(self, delay_ps: int) -> float:
        """Return the fixed latency of one command, seconds: submission, front end, firmware
        (``delay_ps``) and the link in both directions."""
        host, front = self.cfg.host.io_submit_ps, self.cfg.frontend.command_ps
        return (host + front + delay_ps + 2 * self.cfg.link.latency_ps) / 1e12

    def _program_ps(self) -> int:
        """Return the array time to program a page or word line, summed over its passes, ps."""
        flash = self.cfg.flash
        second = flash.t_program_second_ps if flash.programming == "two_pass" else 0
        return flash.t_program_ps + second

    def _block_s(self, array_ps: int, link_rate: int, line: int = 1) -> float:
        """Return the unloaded latency of one block, seconds: the array operations on the die with
        the most pages of the block, one after the other, plus the transfer over channel or link,
        whichever is slower. ``line``: number of pages per plane that one array operation handles.
        """
        geometry = self.geometry
        block = self.cfg.host.io_block_bytes
        pages = block / self.cfg.flash.page_bytes
        groups = pages / (geometry.planes if self.cfg.flash.multi_plane else 1) / line
        channel = max(pages / geometry.channels, min(pages, geometry.planes)) * self._page_s()
        rounds = max(groups / geometry.dies, 1.0)
        return rounds * array_ps / 1e12 + max(channel, block / link_rate)

    def read_latency(self) -> float:
        """Return the unloaded latency of one block read, seconds."""
        array = self._block_s(self.cfg.flash.t_read_ps, self.cfg.link.up_bytes_per_s)
        return self._fixed_s(self.cfg.frontend.read_delay_ps) + array

    def write_latency(self) -> float:
        """Return the unloaded latency of one block write, seconds. With a write-back cache, the
        write does not wait for the array."""
        fixed = self._fixed_s(self.cfg.frontend.write_delay_ps)
        rate = self.cfg.link.down_bytes_per_s
        if self._writes_back:
            return fixed + self.cfg.host.io_block_bytes / rate
        return fixed + self._block_s(self._program_ps(), rate, word_line_pages(self.cfg))

    @property
    def _writes_back(self) -> bool:
        """True if writes complete in the drive's data cache."""
        return self.cfg.cache.mode in ("write_back", "read_write")

    def first_read(self) -> float:
        """Return the time from the start of a read stream to the transfer of its first
        super-page, seconds."""
        return self._fixed_s(self.cfg.frontend.read_delay_ps) + self.cfg.flash.t_read_ps / 1e12

    def last_write(self) -> float:
        """Return the time from the last transfer of a write stream to the end of its last program,
        seconds."""
        return self._fixed_s(self.cfg.frontend.write_delay_ps) + self._program_ps() / 1e12


def isp_path(demand: Demand, read: float, written: float) -> None:
    """Add the work on the path between an in-storage processor and flash. ``read``, ``written``:
    number of bytes that the processor of one device reads and writes."""
    isp = demand.cfg.isp
    if isp.flash_write_bytes_per_s:
        demand.add("ISP flash path", read / isp.flash_bytes_per_s)
        demand.add("ISP flash writes", written / isp.flash_write_bytes_per_s)
    else:
        demand.add("ISP flash path", (read + written) / isp.flash_bytes_per_s)


def handle_depth(cfg: Config) -> int:
    """Return the maximum number of blocks in flight on each drive per asynchronous I/O handle, if
    reads and writes use separate handles. The handles share the queue of the front end equally."""
    return max(min(cfg.host.io_queue_depth, cfg.frontend.queue_depth // 2), 1)


def with_latency(name: str, work: float, latency: float, text: str) -> Bound:
    """Return a bound of ``work`` plus ``latency`` seconds. The bottleneck of the bound is ``name``,
    or "latency" if the latency is longer than the work. ``text``: calculation of ``work``."""
    name = "latency" if latency > work else name
    return Bound(work + latency, name, f"{text} + latency {words(latency)}")


def parts_text(parts: list[tuple[str, str, float]]) -> str:
    """Format (stage, resource, seconds) as "read 2.5 s (channels) + CPU 1 s (host CPU)"."""
    return " + ".join(f"{what} {words(seconds)} ({name})" for what, name, seconds in parts)


def words(seconds: float) -> str:
    """Format seconds with three significant digits and a suitable unit."""
    return fmt_time(seconds * 1e12)
