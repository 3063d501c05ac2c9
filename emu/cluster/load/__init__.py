"""Load of other programs on a node: random or recorded load, and its effect on speed."""
