"""TCP/IP-over-NVMe tunnel between the host and the ISP of a computational storage drive.

Source: see each module.
"""
