"""Processes on this machine that use emulated drives in wall-clock time.

Owns the storage processes and the training process of `ondie ndpipe`, and the processes, network
namespaces, network devices and relays of `ondie tunnel` (IP tunnels to drives through NVMe
commands). Does not own the drives or their controllers (drive.py, emu/serve, emu/controller), the
models in virtual time (emu/ndpipe, emu/nvme) or the output (emu/cli).
Source: see each module.
"""
