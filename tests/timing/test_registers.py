"""Cache and data registers, planes: what works side by side, and what it costs without.

Small plans on one or two dies, every completion computed by hand from the numbers of the
harness. A reservoir read takes 2.2 us behind the channel: DRAM twice 1, link 1, latency 0.2.
"""

import pytest

from ondie.emu.engine.core import plan_rows as rows
from ondie.emu.engine.core import stages as s
from ondie.emu.engine.core.counters import ARRAY_PROGRAMS, ARRAY_READS
from ondie.emu.engine.run.errors import SimulationError
from ondie.emu.nand.timing import BPR, ODC, VPP
from ondie.emu.nvme import command as queues
from tests.timing import harness as h
from tests.timing.harness import ns

PE = 7 * h.US


def test_cache_read():
    """Two reads of one die. First: command 0-0.1, array -10.1. The second's command goes before
    the first's data: 10.1-10.2, its array works until 20.2 while the data leave 10.2-14.296.
    Data of the second 20.2-24.296. Behind the channel 2.2 each."""
    bench = h.Bench(super_pages=2)
    assert bench.ends([bench.read(0), bench.read(1)]) == ns(16.496, 26.496)


def test_without_cache_read():
    """The array holds its data until they have left: 0.1 + 10 + 4.096 = 14.196 before the second's
    command, which is done 14.196 later."""
    bench = h.Bench(super_pages=2, flash__cache_read="false")
    assert bench.ends([bench.read(0), bench.read(1)]) == ns(16.396, 30.592)


def test_cache_read_waits_for_the_cache_register():
    """tR 2 is shorter than the data's 4.096. Array 1 until 2.1, command 2 until 2.2, data 1 until
    6.296; array 2 is done at 4.2 but has to keep its page until then; only then command 3
    (6.296-6.396), data 2 until 10.492, data 3 until 14.588."""
    bench = h.Bench(super_pages=3, flash__t_read="2 us")
    ids = [bench.read(i) for i in range(3)]
    assert bench.ends(ids) == ns(6.296 + 2.2, 10.492 + 2.2, 14.588 + 2.2)


def writes(bench):
    """Two pages by the ISP. They are at the die, encoded, at 0.5 + 0.25 + 0.5 = 1.25 us and 0.5 us
    later (DRAM and encoder take 0.5 each)."""
    return [bench.isp(queues.WRITE, 0), bench.isp(queues.WRITE, 1)]


def test_cache_program():
    """Data of the first 1.25 + 4.196 = 5.446, its array until 55.446. The second's data enter the
    cache register meanwhile (until 9.642): its array starts at 55.446."""
    bench = h.Bench()
    assert bench.ends(writes(bench)) == ns(55.446, 105.446)


def test_without_cache_program():
    """The second's data cross the channel only at 55.446: 4.196 later."""
    bench = h.Bench(flash__cache_program="false")
    assert bench.ends(writes(bench)) == ns(55.446, 109.642)


def test_cache_program_holds_one_page():
    """A third page finds the cache register taken until the second's array starts at 55.446;
    its data enter then (until 59.642), its array starts at 105.446. Die 1 of the channel is
    served between."""
    bench = h.Bench(flash__dies_per_channel=2)
    ends = bench.ends([bench.isp(queues.WRITE, i) for i in range(5)])
    dies = [(int(bench.arrays.l2p[0, i]) - 1) // (16 * 8 * 2) for i in range(5)]
    assert dies == [0, 1, 0, 1, 0]  # every write goes to the next die
    first, other = 1.25 + 4.196, 1.25 + 2 * 4.196  # when the arrays start
    assert ends == ns(first + 50, other + 50, first + 100, other + 100, first + 150)


def test_multi_plane_program():
    """Two pages as one: DRAM 1, path 0.5, encoder 1, commands 0.2, data 8.192, one tPROG."""
    bench = h.Bench()
    assert bench.ends([bench.isp(queues.WRITE, 0, pages=2)]) == ns(60.892)
    assert bench.arrays.count[0, ARRAY_PROGRAMS] == 1


def test_single_plane_program():
    """The same as two operations: at 1.5 both pages have crossed DRAM and path, encoders 2.0
    and 2.5, first data until 6.196, array until 56.196; the second's data wait in the cache
    register."""
    bench = h.Bench(flash__multi_plane="false")
    assert bench.ends([bench.isp(queues.WRITE, 0, pages=2)]) == ns(106.196)
    assert bench.arrays.count[0, ARRAY_PROGRAMS] == 2


def test_multi_plane_read():
    """Commands 0.2, one tR, data 8.192, decoder 2, path 0.5, DRAM 1."""
    bench = h.Bench()
    bench.system.fill(0, 0, 2)
    assert bench.ends([bench.isp(queues.READ, 0, pages=2)]) == ns(21.892)


def test_single_plane_read():
    """Two reads with the cache register: second array until 20.2, its data until 24.296, decoder
    25.296, path 25.546, DRAM 26.046."""
    bench = h.Bench(flash__multi_plane="false")
    bench.system.fill(0, 0, 2)
    assert bench.ends([bench.isp(queues.READ, 0, pages=2)]) == ns(26.046)


def test_only_neighbours_in_one_super_page_go_together():
    """Two logical neighbours are read by two operations when they lie in one super-page in the
    wrong order (1 then 0), or in two super-pages (3 written between 4 and 5)."""
    bench = h.Bench()
    for lpn in (1, 0, 4, 3, 5):
        bench.system.fill(0, lpn, 1)
    bench.ends([bench.isp(queues.READ, 0, pages=2)])
    assert bench.arrays.count[0, ARRAY_READS] == 2
    bench.ends([bench.isp(queues.READ, 4, pages=2)])
    assert bench.arrays.count[0, ARRAY_READS] == 4


def test_one_gradient_register():
    """The next gradient waits until the computation has consumed the first: 0.1 + 7, then
    4.196."""
    bench = h.Bench(super_pages=2)
    start = prepared(bench)
    odc = bench.die(ODC, pages=0, array_ps=PE)
    load = bench.die(VPP, super_page=1)
    assert bench.ends([odc, load]) == [start + x for x in ns(7.1, 11.296)]


def test_two_gradient_registers():
    """It enters the second register while the die computes: right behind the 0.1 of the
    command."""
    bench = h.Bench(super_pages=2, pe__dispatch="double_buffered")
    start = prepared(bench)
    odc = bench.die(ODC, pages=0, array_ps=PE)
    load = bench.die(VPP, super_page=1)
    assert bench.ends([odc, load]) == [start + x for x in ns(7.1, 4.296)]


def test_gradient_beside_the_array_read():
    """A gradient enters while BPR senses: the cache register is not the data registers. BPR's
    commands 0-0.2, then the gradient until 4.396; BPR is done at 10.2."""
    bench = h.Bench(super_pages=2)
    ids = [bench.die(BPR, pages=2), bench.die(VPP)]
    assert bench.ends(ids) == ns(10.2, 4.396)


def prepared(bench):
    bench.die(VPP)
    bench.die(BPR, pages=2)
    bench.run_to()
    return bench.now


def test_a_computation_needs_its_gradient_and_its_stripe():
    """ODC with BPR but no VPP before it, and with VPP but no BPR, is an error of the plan."""
    for before in (BPR, VPP):
        bench = h.Bench(super_pages=2)
        bench.die(before, pages=2 if before == BPR else 1)
        bench.run_to()
        bench.die(ODC, pages=0, array_ps=PE)
        with pytest.raises(
            SimulationError, match="die 0: the registers do not hold .* of operation ODC"
        ):
            bench.run_to()


def test_one_decoder_per_channel():
    """Decoding takes 6, longer than the data of a page. Two dies: data until 14.196 and 18.292;
    the second waits for the decoder until 20.196 and leaves it at 26.196. Then 0.25 + 0.5."""
    bench = h.Bench(flash__dies_per_channel=2, ecc__decode="6 us")
    bench.system.fill(0, 0, 4)  # pages 0, 1 on die 0, 2, 3 on die 1
    ids = [bench.isp(queues.READ, 0), bench.isp(queues.READ, 2)]
    assert bench.ends(ids) == ns(20.946, 26.946)


def test_each_channel_has_its_decoder():
    """Two channels: both decoded at 14.196 + 6; path to the ISP and DRAM are shared: 20.446 and
    20.946 for the first, 20.696 and 21.446 for the second."""
    bench = h.Bench(flash__channels=2, ecc__decode="6 us")
    bench.system.fill(0, 0, 4)
    ids = [bench.isp(queues.READ, 0), bench.isp(queues.READ, 2)]
    assert bench.ends(ids) == ns(20.946, 21.446)


def test_dram_is_shared():
    """Long transfers go through DRAM in pieces of a super-page (2 pages, 1 us), and take turns.
    Two pieces come down the link at 2.2 and 4.2; an ISP computation moves four from 4 on. DRAM:
    host 2.2-3.2, ISP 4-5, host 5-6, ISP 6-9."""
    bench = h.Bench()
    down = bench.one(resource=rows.DMA_DOWN, bytes_in=4 * h.PAGE)
    timer = bench.at(4 * h.US)
    isp = bench.one(resource=rows.ISP, bytes_in=8 * h.PAGE, array_ps=1 * h.US, after0=timer)
    assert bench.ends([down, isp]) == ns(6.0, 9.0)
    dram = int(bench.arrays.reg.fifo0[0]) + s.HOST_STATIONS + s.DRAM
    assert bench.arrays.use[0, dram] == 12 * h.DRAM
