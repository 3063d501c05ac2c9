"""Power loss during a run: the power cut, the recovery, and the conservation checks after a cut."""
