"""NDPipe as processes: stores with photos in emulated drives, and a Tuner, on the loopback network.

Owns the processes, the frames between them, photos, labels and training. Does not own cuts, layer
tables and versions (emu/ndpipe).
Source: NDPipe (ASPLOS 2024). torch and Pillow belong to the extra `train` and are imported only
where they are used.
"""
