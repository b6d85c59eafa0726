"""Kernels of our own for the CPU, in C++; torch computes the same without them."""
