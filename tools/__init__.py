"""Programs that make what Sundog ships: the embedded model and the tables of kernels."""
