"""`ondie bench kernels`: speed of the update kernels beside other libraries. Needs no device."""
