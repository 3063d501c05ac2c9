"""End of a process whose compiled code does not return after an interrupt.

Owns the watch over SIGINT. Does not own the message of other interrupts (cli/__init__.py, main.py).
Source: none. Python handles a signal only between two instructions of Python code, so that an
endless loop in a policy of the user, which is compiled, would ignore Ctrl-C.
"""

import os
import signal
import socket
import sys
import threading
import time

GRACE_S = 5.0
"""Seconds from an interrupt until a process with a policy of the user ends in any case."""


def watch() -> None:
    """End this process with code 130 if it has compiled a policy of the user and still runs GRACE_S
    after an interrupt. Does nothing where SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    sender, receiver = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)

    def wait() -> None:
        with sender, receiver:
            while received := receiver.recv(1):
                if received[0] == signal.SIGINT:
                    time.sleep(GRACE_S)
                    _end_if_policy()

    threading.Thread(target=wait, name="interrupt", daemon=True).start()


def _end_if_policy() -> None:
    """End the process with one line if it has compiled a policy of the user."""
    state = sys.modules.get("ondie.emu.engine.core.state")
    if state and state.user_policies:
        line = (
            f"ondie: interrupted; nothing was written; the simulation with the policy "
            f"{', '.join(state.user_policies)} did not return within {GRACE_S:g} s\n"
        )
        os.write(2, line.encode())
        os._exit(130)
