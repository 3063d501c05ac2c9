"""NVMe controller as a host sees it: registers, queues, admin and I/O commands, byte for byte.

Owns the data structures of the specification as tables, the state of the controller, and the
checks and results of commands. Does not own sockets or host memory (a transport), the execution of
commands (ondie.emu.nvme, ondie.emu.drive) or the protocol of the tunnel (ondie.emu.nvme.tunnel).
Source: NVM Express Base Specification 2.0, NVM Command Set Specification 1.0, NVMe over PCIe
Transport Specification 1.0.

No module here does I/O, reads a clock or refers to a drive. A transport drives them as follows:

1. The transport creates one ``Controller`` (admin.py) from ``Capabilities`` (capabilities.py) and
   a function that returns the health data of the drive as ``Health`` (health.py).
2. Memory-mapped transports pass register accesses to ``Controller.registers`` (registers.py): a
   write returns the actions that it starts, such as ``ENABLE`` or ``SHUT_DOWN``. When an action is
   done, the transport calls the method that the description of the action names (actions.py).
   Message transports do the same with Property Get and Property Set.
3. The transport fetches a submission queue entry (64 bytes). ``transfer_of`` (admin.py,
   io_commands.py) returns the direction and the size of the data transfer. ``prp.walk`` and
   ``sgl.walk`` convert the data pointer to pieces of host memory; they read PRP lists and SGL
   segments through a function of the transport.
4. ``Controller.execute`` executes an admin command and returns a ``Reply``. The transport
   performs the actions of the reply in order, then copies the reply's data to the host and posts
   the reply's entries. If the reply has no entries, the command completes later:
   ``Controller.notify`` reports an event and returns the entries that complete Async Event
   Requests, and ``TunnelCommands.completions`` (tunnel.py) returns ended tunnel commands with their
   data.
5. ``io_commands.decode`` converts an I/O command to an ``IoPlan``: stages of drive commands
   (nvme/command.COMMAND). The transport submits a stage when all commands of the previous stage
   have completed. ``finish`` (io_commands.py) converts their statuses to the status of the NVMe
   command.
"""
