"""Power loss during a run: the power cut, the recovery, and the conservation checks after a cut.

Owns the removal of lost work from the totals, the report of a recovery, and the resumption of the
interrupted step. Does not own the scan of the flash (states/reservoir_scan.py) or the contents of
torn pages (nand/torn_pages.py).
Source: this project's rules of recovery.
"""
