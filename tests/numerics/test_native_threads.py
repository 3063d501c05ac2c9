"""Do updates divided in C give the same bits, from any thread, after a fork, and under signals?"""

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from ondie.kernels import KernelError, get, isas, tensors
from tests.numerics.test_formats import arrays_of
from tests.numerics.test_updates import BASE

pytestmark = pytest.mark.skipif(not isas(), reason="the extension is not built")
LEAST, GRAIN = 16384, 4096  # ONDIE_LEAST, ONDIE_GRAIN
FORMATS = ("fp32", "fp16", "bf16_stochastic", "int8_dynamic")


def updated(kernel, arrays, threads, first=0):
    """Copies after three steps."""
    arrays = [a.copy() for a in arrays]
    for step in (1, 2, 3):
        coef = kernel.coefficients(BASE["adam"], step)
        kernel.run(arrays, coef, threads, first, step)
    return [a.tobytes() for a in arrays]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("n", [2 * LEAST, 3 * LEAST - 1, 5 * LEAST + 77, 40 * GRAIN + 1])
def test_one_array(name, n, rng):
    """Cut between threads at whole blocks, whatever their number."""
    kernel = get("adam", "c", format=name)
    arrays = arrays_of(rng, kernel, n, "ordinary")
    alone = updated(kernel, arrays, 1, first=12345)
    for threads in (2, 3, 7, 100):
        assert updated(kernel, arrays, threads, first=12345) == alone


def test_the_number_of_an_element_does_not_wrap(rng):
    """Numbers beyond 2^32 go on between threads as they do within one."""
    kernel = get("adam", "c", format="bf16_stochastic")
    arrays = arrays_of(rng, kernel, 6 * LEAST, "ordinary")
    first = (1 << 32) - 3 * LEAST - 5
    assert updated(kernel, arrays, 3, first) == updated(kernel, arrays, 1, first)
    assert updated(kernel, arrays, 3, first) != updated(kernel, arrays, 3, first + 1)


def test_callers_at_once(rng, counts):
    """One of them has the idle threads, the others work alone: nobody waits, all are right."""
    kernel = get("adam", "c")
    given = [arrays_of(rng, kernel, 4 * LEAST + i, "ordinary") for i in range(4)]
    wanted = [updated(kernel, arrays, 1) for arrays in given]
    wrong = []

    def work(i):
        for _ in range(counts(20, 500)):
            if updated(kernel, given[i], 1 + i) != wanted[i]:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_tensors_of_very_different_sizes(rng):
    kernel = get("adam", "c")
    sizes = [100_000, 0, 3, 50_000, 17, 17, 200_000, 1]
    given = [arrays_of(rng, kernel, n, "ordinary") for n in sizes]
    coef = kernel.coefficients(BASE["adam"], 1)
    found = []
    for threads in (1, 2, 5):
        parts = [[a.copy() for a in arrays] for arrays in given]
        table = tensors(kernel, parts)
        table(coef, threads)
        table(coef, threads)  # bound the second time
        found.append([a.tobytes() for arrays in parts for a in arrays])
    assert found[0] == found[1] == found[2]


def test_no_threads_and_shared_memory_are_refused(rng):
    kernel = get("adam", "c")
    arrays = arrays_of(rng, kernel, 4 * LEAST, "ordinary")
    coef = kernel.coefficients(BASE["adam"], 1)
    for run in (kernel.run, lambda x, c, threads: tensors(kernel, [x])(c, threads)):
        for threads in (0, -1, 1.5, "2", 1025, 2**31):
            with pytest.raises(KernelError, match=f"threads: {threads!r}; must be from 1 to 1024"):
                run(arrays, coef, threads)
    before = [a.copy() for a in arrays]
    with pytest.raises(KernelError, match="share memory"):
        kernel(arrays[0], arrays[0], arrays[2:], coef, 2)
    assert [a.tobytes() for a in arrays] == [a.tobytes() for a in before]


SCRIPT = """
    import os, signal, sys, threading, time
    import numpy as np
    from ondie.kernels import get
    kernel = get("adam", "c")
    coef = kernel.coefficients({"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}, 1)

    def update(n=200_000):
        arrays = [np.ones(n, np.float32) for _ in range(4)]
        kernel.run(arrays, coef, 3)
        return arrays[0].tobytes()
"""


def script(body):
    code = textwrap.dedent(SCRIPT) + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are not listed here")
def test_threads_are_kept():
    """Those of C, whom Python does not know."""
    said = script("""
        count = lambda: len(os.listdir("/proc/self/task"))
        before = count()
        update(1000)
        print(count() - before)
        update()
        print(count() - before)
        for _ in range(10): update()
        print(count() - before, threading.active_count())
    """)
    assert said == ["0", "2", "2", "1"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are not listed here")
def test_a_forked_child_has_threads_of_its_own():
    said = script("""
        want = update()
        for _ in range(20):
            child = os.fork()
            if not child:
                before = len(os.listdir("/proc/self/task"))
                right = update() == want == update()
                os._exit(0 if right and len(os.listdir("/proc/self/task")) == before + 2 else 7)
            assert os.waitpid(child, 0)[1] == 0
        print(update() == want)
    """)
    assert said == ["True"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are not listed here")
def test_signals_go_to_python():
    """The threads take none, so that an interrupt ends what Python waits for."""
    said = script("""
        before = set(os.listdir("/proc/self/task"))
        update()
        for task in set(os.listdir("/proc/self/task")) - before:
            status = open(f"/proc/self/task/{task}/status").read()
            blocked = int(status.split("SigBlk:")[1].split()[0], 16)
            print(blocked >> signal.SIGINT - 1 & blocked >> signal.SIGTERM - 1 & 1)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert said == ["1", "1", "interrupted"]


def test_denormals_are_kept_by_every_thread():
    """Whatever the caller, or who hired the threads, has been told."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    kernel = get("sgd", "c")
    coef = kernel.coefficients({"lr": 0.5}, 1)
    tiny = np.full(64 * LEAST, 2.0**-140, np.float32)  # while that is not made 0
    try:
        for flush in (True, False, True):
            if not torch.set_flush_denormal(flush):
                return  # this processor cannot
            for threads in (1, 4):
                w = tiny.copy()
                kernel.run([w, tiny], coef, threads)
                assert np.unique(w.view(np.uint32)).tolist() == [1 << 8]
    finally:
        torch.set_flush_denormal(False)
