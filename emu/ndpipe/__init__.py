"""NDPipe: frozen layers of a network run where the photos are stored, on storage servers (stores).
The layers that are trained run on one other server, the Tuner.

Owns layer tables, the cut of a network, the pipeline of stores and Tuner, and the distribution of
new versions of a model. Does not own the drives (drive.py) or published numbers (validate/ndpipe).
Source: NDPipe (ASPLOS 2024).
"""
