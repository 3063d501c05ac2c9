"""Plans of computation commands: transfers of device memory, copies from flash, programs on cores.

Owns the rows of these plans. Does not own the commands (controller/computation.py), their data
(serve/computation.py), or their time. The engine shares cores, DRAM, flash and link with all other
activity of the drive.
Source: the plan format (engine/core/plan_rows.py); compute/isp_cores.py for the rate of the cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ondie.emu.clock import PS_PER_S
from ondie.emu.compute import isp_cores
from ondie.emu.config.config import Config
from ondie.emu.engine.core import plan_rows
from ondie.emu.nvme import command
from ondie.emu.paths.base import UPDATE, WEIGHTS_UP, Rows

CHUNK_BYTES = 1 << 13
"""Number of input bytes that a program processes at a time. A chunk has at least one element. It is
larger if the input would otherwise have more than MOST_CHUNKS chunks.
"""
MOST_CHUNKS = 1 << 14
IN_FLIGHT = 2
"""Number of chunks in flight: DRAM transfers one chunk while the cores process the other."""


def transfer(size: int, to_host: bool) -> Iterator[np.ndarray]:
    """Yield the plan rows of a transfer of ``size`` bytes between host memory and the DRAM of the
    device."""
    rows = Rows()
    if to_host:
        rows.one(resource=plan_rows.DMA_UP, phase=WEIGHTS_UP, bytes_out=size)
    else:
        rows.one(resource=plan_rows.DMA_DOWN, phase=UPDATE, bytes_in=size)
    yield rows.take()


def copy(first_unit: int, units: int, unit_bytes: int, most: int) -> Iterator[np.ndarray]:
    """Yield the plan rows that copy ``units`` mapping units, starting at ``first_unit``, from flash
    to the DRAM of the device. The rows are reads by the in-storage processor. Their data passes
    through channel and ECC. ``most``: maximum number of mapping units per row."""
    rows = Rows()
    first = np.arange(first_unit, first_unit + units, most)
    count = np.minimum(first + most, first_unit + units) - first
    rows.add(
        len(first),
        resource=plan_rows.ISP_IO,
        kind=command.READ,
        phase=UPDATE,
        lpn=first,
        bytes_out=count * unit_bytes,
    )
    yield rows.take()


def execution_ps(
    cfg: Config, elements: int, instructions: Fraction, fixed: int, read_bytes: int,
    written_bytes: int,
) -> int:  # fmt: skip
    """Return an upper bound on the time of a program on an idle drive (ps): the sum of its time on
    the cores and its time in DRAM. The arguments are those of :func:`execution`.
    """
    moved = (read_bytes + written_bytes) * elements
    cores = isp_cores.program_ps(cfg, fixed, 0)
    cores += isp_cores.program_ps(cfg, instructions * elements, moved)
    return cores - (-moved * PS_PER_S // cfg.dram.bandwidth_bytes_per_s)


def execution(
    cfg: Config, elements: int, element_bytes: int, instructions: Fraction, fixed: int,
    read_bytes: int, written_bytes: int,
) -> Iterator[np.ndarray]:  # fmt: skip
    """Yield the plan rows of a program that processes ``elements`` elements of ``element_bytes``
    bytes.

    ``instructions``: instructions per element on the cores. ``read_bytes``, ``written_bytes``: DRAM
    traffic per element (bytes). ``fixed``: instructions before the first element.
    """
    rows = Rows()
    if fixed:
        rows.one(resource=plan_rows.ISP, phase=UPDATE, array_ps=isp_cores.program_ps(cfg, fixed, 0))
    held = max(CHUNK_BYTES // element_bytes, -(-elements // MOST_CHUNKS), 1)
    first = np.arange(0, elements, held)
    count = np.minimum(first + held, elements) - first
    begin = rows.next
    after = np.arange(begin, begin + len(first)) - IN_FLIGHT
    times = {
        each: isp_cores.program_ps(cfg, instructions * each, (read_bytes + written_bytes) * each)
        for each in np.unique(count).tolist()
    }
    rows.add(
        len(first),
        resource=plan_rows.ISP,
        phase=UPDATE,
        bytes_in=count * read_bytes,
        bytes_out=count * written_bytes,
        array_ps=np.array([times[each] for each in count.tolist()], np.int64),
        after0=np.where(after < begin, begin - 1, after),
    )
    yield rows.take()
