"""Processors: host CPU, ISP cores, PEs on the dies; how long a job takes on each."""
