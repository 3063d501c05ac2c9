"""MQSim front end: reads its configuration and workloads, names its quirks, writes its results.

Owns what `ondie mqsim` does around the simulation. Does not own the simulation (engine, ftl, nand,
nvme).
Source: MQSim (A. Tavakkol et al., FAST 2018), the program at its published state of October 2022.
"""
