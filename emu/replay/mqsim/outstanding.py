"""Number of transactions that the requests of open loops need at the same time.

Owns the estimate of this number. Does not own the pool of transactions (engine/run/build.py).
Source: MQSim, whose drive queues any number of transactions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ondie.emu.nvme.queue_pair import EXTRA_PAGES
from ondie.emu.replay.mqsim.flow import Flow
from ondie.emu.replay.mqsim.workload_xml import MOST_SECTORS, Synthetic

MOST_REQUESTS = 65535
"""Maximum number of outstanding requests of an open-loop flow for which :func:`outstanding`
provides transactions."""
MOST_TRANSACTIONS = 1 << 20
"""Maximum number of transactions for the requests of all open-loop flows together. This number of
transactions occupies 128 MiB."""
SPREAD = 4
"""Number of standard deviations by which the number of large requests (with a negative random size,
quirk negative_sizes) may exceed its mean."""


def outstanding(flows: Sequence[Flow], sectors: int, quirks: frozenset[str] = frozenset()) -> int:
    """Return an estimate of the number of transactions that the requests of open loops can need at
    the same time.

    With this number, a drive that is slower than the arrivals can queue all requests, up to
    MOST_REQUESTS of each flow. The result is at most MOST_TRANSACTIONS. A request needs two
    transactions, plus one for each page that a request of mean size touches; a request of a trace
    counts as a request of the size of one page. With the quirk negative_sizes, a negative random
    size becomes a request of up to MOST_SECTORS. The quirk wrapped_requests can divide a request
    further. ``sectors``: sectors per page.
    """
    more = EXTRA_PAGES if "wrapped_requests" in quirks else 0
    wanted = 0
    for flow in flows:
        parameters = flow.parameters
        if flow.depth is not None:
            continue
        requests = min(flow.total or MOST_REQUESTS, MOST_REQUESTS)
        size = sectors
        if isinstance(parameters, Synthetic):
            size = parameters.average_request_size_bytes // 512
            if "negative_sizes" in quirks:
                large = requests * share_of_negative_sizes(parameters)
                large += SPREAD * math.sqrt(large)
                wanted += math.ceil(large) * -(-MOST_SECTORS // sectors)
        wanted += requests * (3 + more + -(-size // sectors))
    return min(wanted, MOST_TRANSACTIONS)


def share_of_negative_sizes(parameters: Synthetic) -> float:
    """Return the fraction of requests whose random size, rounded up, is negative."""
    deviation = parameters.variance_request_size_bytes
    if parameters.request_size_distribution != "NORMAL" or not deviation:
        return 0.0
    distance = (parameters.average_request_size_bytes + 512) / deviation
    return math.erfc(distance / math.sqrt(2)) / 2
