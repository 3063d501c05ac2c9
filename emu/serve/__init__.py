"""Served drive: protocols by which other programs use one drive, as words and as sockets.

Owns NBD, the control socket, the server that runs both, and a client that measures servers. The
only room with sockets. Does not own the drive and its clock (service.py, drive.py) or the printing
(cli).
"""
