"""NDPipe: storage servers (stores) run the frozen layers of a network on the photos that they
store, and one other server, the Tuner, runs the trained layers.

Owns layer tables, the cut of a network, the pipeline of stores and Tuner, and the distribution of
new versions of a model. Does not own the drives (drive.py) or published numbers (validate/ndpipe).
Source: NDPipe (ASPLOS 2024).
"""
