"""MQSim front end: MQSim's configuration and workload files, quirks, and result files.

Owns the input and output of `ondie mqsim`. Does not own the simulation (engine, ftl, nand, nvme).
Source: MQSim (A. Tavakkol et al., FAST 2018), in the version published in October 2022.
"""
