"""Load of other programs on a node: drawn, recorded and its effect on speed."""
