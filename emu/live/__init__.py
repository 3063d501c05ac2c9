"""Programs and processes of this machine that use emulated drives, in wall-clock time.

Owns the stores and the Tuner of `ondie ndpipe`, and the cluster of `ondie tunnel`: processes,
network namespaces, devices and relays. Does not own the drives or their controllers (drive.py,
emu/serve, emu/controller), the models in virtual time (emu/ndpipe, emu/nvme) or the output
(emu/cli).
Source: see each module.
"""
