"""Results as figures in PNG and SVG. Does not own the numbers."""
