"""Results as figures in PNG and PDF. Does not own the numbers."""
