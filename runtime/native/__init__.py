"""Our CPU kernels in C++; torch computes the same without them."""
