"""Does every row of the timing table take exactly what it says, and hold what it should?

Each operation is blocked one picosecond before its time and done on the tick; an operation
behind it on the same die starts on that tick and not before. Numbers are those of the harness.
"""

import pytest

from ondie.emu.nand.timing import BPP, BPR, COPYBACK, ERASE, ODC, OP_NAMES, PROGRAM, READ, VPP
from ondie.emu.nvme import command as queues
from tests.timing import harness as h

PE = 7 * h.US


def loaded(bench):
    """A gradient page and the stripe are in die 0's registers; returns when."""
    bench.die(VPP)
    bench.die(BPR, pages=2)
    bench.run_to()
    return bench.now


def test_read():
    """Reservoir read of one page, bare of ECC: command 0.1 + tR 10 + channel 4.096 + DRAM twice
    2 x 0.5 + link 1 + latency 0.2 = 16.396 us."""
    bench = h.Bench(super_pages=2)
    t = h.COMMAND + h.READ + h.BUS + 2 * h.DRAM + h.LINK + h.LATENCY
    assert t == 16_396 * h.NS
    bench.assert_ready_at(bench.read(), t)


def test_read_of_both_planes():
    """Two planes: two commands, one tR, two pages over everything else:
    0.2 + 10 + 8.192 + 2 + 2 + 0.2 = 22.592 us."""
    bench = h.Bench(super_pages=2)
    t = 2 * h.COMMAND + h.READ + 2 * (h.BUS + 2 * h.DRAM + h.LINK) + h.LATENCY
    assert t == 22_592 * h.NS
    bench.assert_ready_at(bench.read(pages=2), t)


def test_host_read():
    """NVMe read: submission 0.4 + latency 0.2 + firmware 0.3 + command 0.1 + tR 10 + channel 4.096
    + decoder 1 + DRAM 1 + link 1 + latency 0.2 = 18.296 us."""
    bench = h.Bench()
    bench.system.fill(0, 0, 4)
    t = h.SUBMIT + h.LATENCY + h.FIRMWARE + h.COMMAND + h.READ + h.BUS
    t += h.DECODE + 2 * h.DRAM + h.LINK + h.LATENCY
    assert t == 18_296 * h.NS
    bench.assert_ready_at(bench.nvme(queues.READ, 0), t)


def test_host_read_of_what_was_never_written():
    """No flash, no decoder: 0.4 + 0.2 + 0.3 + DRAM 1 + link 1 + 0.2 = 3.1 us."""
    bench = h.Bench()
    t = h.SUBMIT + h.LATENCY + h.FIRMWARE + 2 * h.DRAM + h.LINK + h.LATENCY
    assert t == 3_100 * h.NS
    bench.assert_ready_at(bench.nvme(queues.READ, 0), t)


def program_ps():
    """NVMe write of one page to an erased block: submission 0.4 + latency 0.2 + firmware 0.3 +
    link 1 + latency 0.2 + DRAM twice 1 + encoder 0.5 + command 0.1 + channel 4.096 + tPROG 50
    = 57.796 us."""
    t = h.SUBMIT + h.LATENCY + h.FIRMWARE + h.LINK + h.LATENCY + 2 * h.DRAM + h.ENCODE
    t += h.COMMAND + h.BUS + h.PROGRAM
    assert t == 57_796 * h.NS
    return t


def test_program():
    bench = h.Bench()
    bench.assert_ready_at(bench.nvme(queues.WRITE, 0), program_ps())


def test_program_of_both_planes():
    """One tPROG, two commands, two pages over everything else."""
    bench = h.Bench()
    t = h.SUBMIT + h.LATENCY + h.FIRMWARE + h.LATENCY + h.PROGRAM
    t += 2 * (h.LINK + 2 * h.DRAM + h.ENCODE + h.COMMAND + h.BUS)
    bench.assert_ready_at(bench.nvme(queues.WRITE, 0, pages=2), t)


def test_isp_read_and_write():
    """The ISP passes no NVMe and crosses DRAM once. Read: command 0.1 + tR 10 + channel 4.096 +
    decoder 1 + its path to flash 0.25 + DRAM 0.5 = 15.946 us. Write: DRAM 0.5 + path 0.25 +
    encoder 0.5 + command 0.1 + channel 4.096 + tPROG 50 = 55.446 us."""
    bench = h.Bench()
    write = bench.isp(queues.WRITE, 0)
    t = h.DRAM + h.ISP_LINK + h.ENCODE + h.COMMAND + h.BUS + h.PROGRAM
    assert t == 55_446 * h.NS
    bench.assert_ready_at(write, t)
    read = bench.isp(queues.READ, 0)
    more = h.COMMAND + h.READ + h.BUS + h.DECODE + h.ISP_LINK + h.DRAM
    assert more == 15_946 * h.NS
    bench.assert_ready_at(read, t + more)


def test_erase():
    """A used block is erased before its first program: one erase command per plane, then tBERS;
    the program's data wait for it. The write's way to the die (3.6 us) hides behind the erase,
    which starts when the block is opened, before the page is encoded (0.5 us later).

    Die 0, first block: open at 0.4+0.2+0.3+1+0.2+1 = 3.1 us, erase until 3.1 + 0.2 + 300, then
    0.1 + 4.096 + 50."""
    bench = h.Bench(ftl__initial="steady")
    bench.arrays.block.dirty[:] = 1
    opened = h.SUBMIT + h.LATENCY + h.FIRMWARE + h.LINK + h.LATENCY + 2 * h.DRAM
    erased = opened + 2 * h.COMMAND + h.ERASE
    t = erased + h.COMMAND + h.BUS + h.PROGRAM
    write = bench.nvme(queues.WRITE, 0)
    bench.run_to(erased - 1)
    assert bench.arrays.block.erases.sum() == 0
    bench.run_to(erased)
    assert bench.arrays.block.erases.sum() == 1
    bench.assert_ready_at(write, t)


def test_vpp():
    """A gradient page into the register: command 0.1 + channel 4.096, the DRAM it is streamed from
    (0.5) beside it = 4.196 us. No array."""
    bench = h.Bench(super_pages=2)
    bench.assert_ready_at(bench.die(VPP), h.COMMAND + h.BUS)
    assert bench.arrays.die.gradients[0] == 1


def test_vpp_from_slow_dram():
    """With DRAM at 0.512 GB/s the page takes 8 us to come out of it: that decides."""
    bench = h.Bench(super_pages=2, dram__bandwidth="0.512 GB/s")
    bench.assert_ready_at(bench.die(VPP), 8 * h.US)


def test_bpr():
    """Two planes into the registers: 2 commands + tR, nothing over the channel = 10.2 us."""
    bench = h.Bench(super_pages=2)
    bench.assert_ready_at(bench.die(BPR, pages=2), 2 * h.COMMAND + h.READ)
    assert bench.arrays.die.stripe[0] == 1 and bench.arrays.bus.size_out[0] == 0


def test_odc():
    """One command however many planes, then the cycles that the row brings: 0.1 + 7 us."""
    bench = h.Bench(super_pages=2)
    start = loaded(bench)
    bench.assert_ready_at(bench.die(ODC, pages=0, array_ps=PE), start + h.COMMAND + PE)
    assert bench.arrays.die.gradients[0] == 0


def test_bpp():
    """From the registers to the array: 2 commands + tPROG, nothing over the channel = 50.2 us."""
    bench = h.Bench(super_pages=2)
    start = loaded(bench)
    before = int(bench.arrays.bus.size_in[0])
    bench.assert_ready_at(bench.die(BPP, pages=2), start + 2 * h.COMMAND + h.PROGRAM)
    assert bench.arrays.die.stripe[0] == 0 and bench.arrays.bus.size_in[0] == before


def test_bpp_into_a_used_block():
    """The stripe that opens a used block waits for its erase, the registers keeping the data:
    0.2 + 300 + 0.2 + 50 us. Super-pages 0..7 fill one block of 8 pages."""
    bench = h.Bench(super_pages=8, ftl__initial="steady")
    bench.arrays.block.dirty[:] = 1
    start = loaded(bench)
    t = start + 2 * h.COMMAND + h.ERASE + 2 * h.COMMAND + h.PROGRAM
    bench.assert_ready_at(bench.die(BPP, pages=2), t)


# What is behind an operation on the same die starts when the array is free, not one tick earlier.
# (operation, what has to be in the registers, array time with the commands before it)
HOLDS = [
    (BPR, False, 2 * h.COMMAND + h.READ),
    (ODC, True, h.COMMAND + PE),
    (BPP, True, 2 * h.COMMAND + h.PROGRAM),
]


@pytest.mark.parametrize(("op", "needs", "takes"), HOLDS, ids=[OP_NAMES[x[0]] for x in HOLDS])
def test_the_array_is_held(op, needs, takes):
    """An ODC behind the operation is done 0.1 + 7 us after the array is free. A second gradient
    register and a gradient in each let two computations follow each other."""
    bench = h.Bench(super_pages=4, pe__dispatch="double_buffered")
    bench.die(VPP)
    bench.die(VPP, super_page=1)
    if needs:
        bench.die(BPR, pages=2)
    bench.run_to()
    start = bench.now
    first = bench.die(op, pages=0 if op == ODC else 2, array_ps=PE if op == ODC else 0)
    if op == BPP:  # the registers are free afterwards: a BPR may follow
        second, more = bench.die(BPR, super_page=1, pages=2), 2 * h.COMMAND + h.READ
    else:
        second, more = bench.die(ODC, pages=0, array_ps=PE), h.COMMAND + PE
    bench.assert_ready_at(first, start + takes)
    bench.assert_ready_at(second, start + takes + more)


def test_a_read_waits_for_the_array():
    """Die busy programming: a read that arrives meanwhile starts when tPROG is over."""
    bench = h.Bench(super_pages=2)
    write = bench.nvme(queues.WRITE, 0)
    bench.run_to(program_ps() - 1)
    read = bench.read()
    more = h.COMMAND + h.READ + h.BUS + 2 * h.DRAM + h.LINK + h.LATENCY
    bench.assert_ready_at(write, program_ps())
    bench.assert_ready_at(read, program_ps() + more)


def test_a_transfer_holds_the_channel():
    """Two dies of one channel: the second gradient goes behind the first, 4.196 us each."""
    bench = h.Bench(super_pages=4, flash__dies_per_channel=2)
    first, second = bench.die(VPP, 0), bench.die(VPP, 1)
    bench.assert_ready_at(first, h.COMMAND + h.BUS)
    bench.assert_ready_at(second, 2 * (h.COMMAND + h.BUS))


def test_channels_work_side_by_side():
    bench = h.Bench(super_pages=4, flash__channels=2)
    first, second = bench.die(VPP, 0), bench.die(VPP, 1)
    assert bench.ends([first, second]) == [h.COMMAND + h.BUS] * 2


@pytest.mark.parametrize("op", range(COPYBACK), ids=OP_NAMES[:COPYBACK])
def test_an_entry_that_moves_moves_its_operation(op):
    """Command cycles and array time of one entry, moved by 1 and 10 ps, move the operation by as
    much: the table is what the engine goes by."""
    ends = []
    for command, array in ((0, 0), (1, 0), (0, 10)):
        bench = h.Bench(super_pages=8, ftl__initial="steady" if op == ERASE else "fresh")
        bench.arrays.block.dirty[:] = int(op == ERASE)
        bench.arrays.cycles[op, 1:] += command
        bench.arrays.op.array[op] += array
        if op == READ:
            row = bench.read(pages=2)
        elif op in (PROGRAM, ERASE):
            row = bench.nvme(queues.WRITE, 0, pages=2)
        else:
            if op in (ODC, BPP):
                loaded(bench)
            row = bench.die(op, pages=1 if op == VPP else 2, array_ps=PE if op == ODC else 0)
        bench.run_to()
        ends.append(bench.end(row))
    assert [end - ends[0] for end in ends[1:]] == [1, 0 if op == VPP else 10]
