"""MQSim front end: MQSim's configuration and workload files, quirks, and result files.

Owns the input and output of `ondie mqsim`. Does not own the simulation (engine, ftl, nand, nvme).
Source: MQSim (A. Tavakkol et al., FAST 2018), the program at its published state of October 2022.
"""
