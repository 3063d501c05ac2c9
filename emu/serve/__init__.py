"""Server: the protocols through which other programs use one drive, with their messages and
sockets.

Owns NBD, NVMe/TCP, vfio-user, the control socket, the server that runs these protocols, and the
clients that measure the speed of servers. Does not own the drive and its clock (service.py,
drive.py) or terminal output (cli).
"""
