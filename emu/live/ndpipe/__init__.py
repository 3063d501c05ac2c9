"""NDPipe as processes that are connected by the loopback network: stores, which keep photos on
emulated drives and run the first layers of a network on them, and a Tuner, which trains the last
layer.

Owns the processes, the frames between them, photos, labels and training. Does not own the choice of
the layer at which the network is divided, layer tables, or model versions (emu/ndpipe).
Source: NDPipe (ASPLOS 2024). torch and Pillow belong to the extra `train` and are imported only
where they are used.
"""
