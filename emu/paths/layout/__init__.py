"""Where weights, gradients and states lie: formats, stripes, regions, RAID 0."""
