"""Health monitor: reports critical warnings of a served drive as events, and saves its counters.

Owns the thread and its intervals. Does not own the events and the counters (nvme_drive.py).
Source: NVM Express Base Specification 2.0, section 5.2 (events of the SMART / Health Information
log page).
"""

from __future__ import annotations

import threading
import time

from ondie.emu.serve.defects import say_once
from ondie.emu.serve.nvme_drive import NvmeDrive
from ondie.emu.units import InputError

LOOK_S = 0.5
"""Interval of the checks for critical warnings, s."""
SAVE_S = 5.0
"""Interval at which changed counters are written to the store, s. If the process is killed, the
counts of at most one interval are lost."""


class HealthWatch:
    """Monitor of ``drive`` that runs in a thread until :meth:`close`. It reports new critical
    warnings every LOOK_S seconds, and saves changed counters every SAVE_S seconds."""

    def __init__(self, drive: NvmeDrive) -> None:
        self._drive = drive
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ondie health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the monitoring thread."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        saved = time.monotonic()
        while not self._end.wait(LOOK_S):
            try:
                self._drive.look()
                if time.monotonic() - saved >= SAVE_S:
                    saved = time.monotonic()
                    self._drive.save_counts()
            except InputError as error:  # the file cannot be written, or the service has ended
                say_once(f"the counters of the drive cannot be saved: {error}")
