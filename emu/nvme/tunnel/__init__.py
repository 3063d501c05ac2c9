"""TCP/IP over NVMe: the tunnel between host and ISP of a computational storage drive.

Source: each module names its own.
"""
