"""Optimizer offload to the host: states on the drives, arithmetic on the host CPU.

Source: ZeRO-Infinity (Rajbhandari et al., SC 2021) and DeepSpeed.
"""
