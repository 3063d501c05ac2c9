"""Processors: host CPU, ISP cores, PEs on the dies; time of a job on each."""
