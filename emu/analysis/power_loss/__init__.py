"""Power loss during a run: the cut, recovery after it, and the conservation laws across it."""
