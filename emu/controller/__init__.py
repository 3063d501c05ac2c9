"""NVMe controller as a host sees it: registers, queues, admin and I/O commands, byte for byte.

Owns the data structures of the specification as tables, the state of the controller, and the
decisions on commands. Does not own sockets or host memory (a transport), the execution of commands
(ondie.emu.nvme, ondie.emu.drive) or the protocol of the tunnel (ondie.emu.nvme.tunnel).
Source: NVM Express Base Specification 2.0, NVM Command Set Specification 1.0, NVMe over PCIe
Transport Specification 1.0.

No module here does I/O, reads a clock or refers to a drive. A transport drives them as follows:

1. It makes one ``Controller`` (admin.py) from ``Capabilities`` (capabilities.py) and a function
   that returns the drive's counters as ``Health`` (health.py).
2. Memory-mapped transports pass register accesses to ``Controller.registers`` (registers.py): a
   write returns the actions that it starts, such as ``ENABLE`` or ``SHUT_DOWN``. When an action is
   done, the transport calls the method that the action names. Message transports do the same with
   Property Get and Property Set.
3. It fetches a submission queue entry (64 bytes). ``transfer_of`` (admin.py) and ``decode``
   (io_commands.py) say how many bytes move and in which direction. ``prp.walk`` and ``sgl.walk``
   turn the data pointer into pieces of host memory; each reads lists through a function of the
   transport.
4. An admin command goes to ``Controller.execute``, which returns a ``Reply``. The transport
   performs its actions in order, then moves its data to the host and posts its entries. A reply
   without entries is completed later: events go to ``Controller.notify``, which returns entries of
   Async Event Requests, and ``TunnelCommands.completions`` (tunnel.py) returns commands of the
   tunnel that have ended, with their data.
5. An I/O command becomes an ``IoPlan``: stages of records of nvme/command.COMMAND. The transport
   submits a stage when all commands of the previous one have completed, and ``finish``
   (io_commands.py) turns their statuses into the status of the NVMe command.
"""
