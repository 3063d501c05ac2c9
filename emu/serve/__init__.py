"""Served drive: protocols by which other programs use one drive: their messages and their sockets.

Owns NBD, NVMe/TCP, vfio-user, the control socket, the server that runs them, and a client that
measures servers. The only room with sockets. Does not own the drive and its clock (service.py,
drive.py) or the printing (cli).
"""
