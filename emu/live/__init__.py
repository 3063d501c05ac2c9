"""Programs and processes of this machine that compute on emulated drives, in wall time.

Owns these processes and what they say to each other. Does not own the drives (drive.py, emu/serve),
the models in virtual time (emu/ndpipe, emu/nvme) or what is printed (emu/cli). Source: see each
module.
"""
