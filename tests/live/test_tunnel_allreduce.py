"""Do all-reduces of PyTorch and Open MPI over host and two drives give the sums, and do their bytes
cross the tunnels?

Each rank knows the data of all ranks. An all-reduce in a ring of P ranks sends 2 (P - 1) / P times
the data from each rank to the next one (Patarasuk and Yuan, 2009), so each drive must receive and
send at least that; and the packets between the drives cross the host's relay.
"""

import shutil
import sys
from pathlib import Path

import pytest

from tests.live.processes import needs, wait_for
from tests.live.tunnel_cluster import NAME, NET, Cluster, cluster, moved

COUNT, RANKS = 1 << 20, 3
RING_BYTES = 4 * COUNT * 2 * (RANKS - 1) // RANKS
MTU, LONGEST = 9000, 65535
"""Of a packet, and of TCP's segments that are not cut."""
MOST_OVERHEAD = 1.05
"""Headers and acknowledgements at this MTU take 1 %, the start of the programs less than that."""
GLOO = """
import datetime, os, sys, torch, torch.distributed as dist
rank, ranks, count, port, host = *map(int, sys.argv[1:5]), sys.argv[5]
limit = datetime.timedelta(seconds=60)
store = dist.TCPStore(host, port, ranks, rank == 0, limit, wait_for_workers=False)
print("port", store.port, "", flush=True)
os.environ["GLOO_SOCKET_IFNAME"] = os.environ["ONDIE_TUNNEL_DEVICE"]
dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
def data(rank):
    draw = torch.Generator().manual_seed(rank)
    return torch.randint(0, 1024, (count,), generator=draw).float()
found = data(rank)
dist.all_reduce(found)
expected = sum(data(each) for each in range(ranks))
print("wrong", int((found != expected).sum()), "of", len(found), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def made():
    """One cluster for all tests of this file."""
    with cluster("--mtu", str(MTU), "--pace", "none") as found:
        yield found


def check_ring(before: dict, after: dict) -> None:
    """Between two statuses, all drives have received and sent what a ring must."""
    ways = moved(before, after)
    for drive in ways:
        for way in ("down", "up"):
            assert RING_BYTES < drive[way] < MOST_OVERHEAD * RING_BYTES, ways
    assert sum(drive["forwarded"] for drive in ways) >= RING_BYTES / LONGEST


@pytest.mark.soak
def test_torch_distributed(made: Cluster):
    pytest.importorskip("torch", reason="torch is not installed")
    before = made.settled()
    made.live.env["OMP_NUM_THREADS"] = "1"
    words = [sys.executable, "-c", GLOO]
    rest = [str(RANKS), str(COUNT)]
    first = made.start(-1, *words, "0", *rest, "0", made.address(-1), ready="port ")
    port = made.live.log_of(first).split()[1]
    others = [
        made.start(drive, *words, str(drive + 1), *rest, port, made.address(-1), ready="port ")
        for drive in (0, 1)
    ]
    for process in (first, *others):
        wait_for("the end of a rank", lambda each=process: each.poll() is not None)
        log = made.live.log_of(process)
        assert process.returncode == 0 and f"wrong 0 of {COUNT}\n" in log, log
    check_ring(before, made.settled())


@pytest.mark.soak
def test_open_mpi(made: Cluster):
    """`ondie tunnel exec --shell` stands in for ssh."""
    needs("mpirun", "mpicc")
    live = made.live
    shutil.copy(Path(__file__).with_name("allreduce.c"), live.folder)
    live.run("mpicc -O1 -Wall -Werror -o allreduce allreduce.c")
    before = made.settled()
    live.env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    hosts = ",".join(made.address(end) for end in (-1, 0, 1))
    own = "--mca rtc ^hwloc"  # daemons of one machine spoil the file that they share of its cores
    ring = "--mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm 4"
    printed = live.run(
        f"mpirun --mca plm_rsh_agent 'ondie tunnel exec --name {NAME} --shell' --host {hosts} "
        f"{own} --mca oob_tcp_if_include {NET}.0/24 --mca btl tcp,self "
        f"--mca btl_tcp_if_include {NET}.0/24 {ring} ./allreduce {COUNT}"
    )
    places = {0: "(null)"} | {drive + 1: made.address(drive) for drive in (0, 1)}
    for rank, place in places.items():
        assert f"rank {rank} of 3 at {place}: {COUNT} values, 0 wrong\n" in printed
    check_ring(before, made.settled())
