"""Load of other programs on a node: drawn or recorded load, and its effect on speed."""
