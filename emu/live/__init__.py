"""Programs of this machine on emulated drives, in wall time: network devices, namespaces, relays.

Owns the cluster of `ondie tunnel`: its processes, network namespaces and devices. Does not own the
drives or their controllers (emu/serve, emu/controller), the tunnel's protocol (emu/nvme/tunnel) or
what is printed (emu/cli). Source: see each module.
"""
