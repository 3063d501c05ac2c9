"""MQSim's own files: its configuration and workloads read, its quirks named, its results written.

Owns what `ondie mqsim` does around the simulation. Does not own the simulation (device, backend).
Source: MQSim (A. Tavakkol et al., FAST 2018), the program at its published state of October 2022.
"""
