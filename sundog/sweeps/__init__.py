"""Sweeps: settings and seeds as cells, and the processes that run them."""
