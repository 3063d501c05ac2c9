"""When are interrupts of I/O queues sent, for values of the features Interrupt Coalescing and
Interrupt Vector Configuration? Source: NVM Express Base Specification 2.0, sections 5.27.1.6
and 5.27.1.7.
"""

from types import SimpleNamespace

import pytest

from ondie.emu.controller.features import INTERRUPT_COALESCING, INTERRUPT_VECTOR
from ondie.emu.serve.interrupt_coalescing import InterruptCoalescing
from ondie.emu.serve.pcie_queues import CompletionQueue

US = 1000


class Values:
    """Values of features: of all vectors, and the configuration of single ones."""

    def __init__(self, time, threshold, disabled=()):
        self.setting, self.disabled = time << 8 | threshold, disabled

    def value(self, feature, part=0):
        if feature == INTERRUPT_COALESCING:
            return self.setting
        assert feature == INTERRUPT_VECTOR
        return part | (part in self.disabled) << 16


def queue_of(vector, entries=16):
    found = CompletionQueue(vector + 1, 1 << 20, entries, vector)
    found.memory = SimpleNamespace(tail=0)
    return found


def post(queue, count):
    """As if completions had been posted."""
    queue.memory.tail = (queue.memory.tail + count) % queue.entries


@pytest.mark.parametrize(("time", "threshold"), [(0, 0), (5, 0), (0, 5)])
def test_without_a_time_or_a_threshold_none_waits(time, threshold):
    found, queue = InterruptCoalescing(Values(time, threshold)), queue_of(1)
    post(queue, 1)
    assert found.posted([queue], 0) == {1}
    assert found.wait_ns(0) is None and found.due(10**9) == set()


def test_the_threshold_is_a_number_of_completions_less_one():
    found, queue = InterruptCoalescing(Values(255, 3)), queue_of(1)
    for turn in range(20):  # around the ring
        for _ in range(3):
            post(queue, 1)
            assert found.posted([queue], turn) == set()
        post(queue, 1)
        assert found.posted([queue], turn) == {1}
        found.sent(1)
        assert found.wait_ns(turn) is None
        queue.ring(queue.memory.tail)


def test_completions_count_once():
    """A host that has been told of some, and has not taken them, is told again after as many."""
    found, queue = InterruptCoalescing(Values(255, 3)), queue_of(1)
    for _ in range(3):
        post(queue, 3)
        assert found.posted([queue], 0) == set()
        post(queue, 1)
        assert found.posted([queue], 0) == {1}
        found.sent(1)


def test_the_time_is_that_of_the_first_completion():
    found, queue = InterruptCoalescing(Values(2, 9)), queue_of(1)
    post(queue, 1)
    assert found.posted([queue], 1000 * US) == set()
    post(queue, 1)
    assert found.posted([queue], 1150 * US) == set()
    assert found.wait_ns(1150 * US) == 50 * US and found.wait_ns(1300 * US) == 0
    assert found.due(1199 * US) == set()
    assert found.due(1200 * US) == {1}
    found.sent(1)
    assert found.due(5000 * US) == set()


def test_queues_of_one_vector_wait_together_and_others_apart():
    found = InterruptCoalescing(Values(1, 3, disabled=(2,)))
    one, other, apart, now, polled = (
        queue_of(1),
        queue_of(1),
        queue_of(3),
        queue_of(2),
        queue_of(-1),
    )
    for each in (one, other, apart, now, polled):
        post(each, 2)
    assert found.posted([one, apart, now, polled], 0) == {2}
    assert found.posted([other], 50 * US) == {1}
    found.sent(1)
    assert found.due(100 * US) == {3}


def test_a_host_that_has_taken_all_needs_no_interrupt():
    found, queue = InterruptCoalescing(Values(1, 3)), queue_of(1)
    post(queue, 2)
    found.posted([queue], 0)
    queue.ring(2)
    assert found.due(100 * US) == set() and found.wait_ns(100 * US) is None
    post(queue, 3)
    assert found.posted([queue], 0) == set(), "those that were taken do not count"


def test_a_reset_forgets_them():
    found, queue = InterruptCoalescing(Values(1, 3)), queue_of(1)
    post(queue, 2)
    found.posted([queue], 0)
    found.forget()
    assert found.due(10**9) == set() and found.wait_ns(0) is None
