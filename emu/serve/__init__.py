"""Server: the protocols through which other programs use one drive, with their messages and
sockets.

Owns NBD, NVMe/TCP, vfio-user, the control socket, the server of these protocols, and the clients
for measuring the speed of servers. Does not own the drive and its clock (service.py, drive.py) or
terminal output (cli).
"""
