"""Figures of a run: metrics, intervals, comparisons, sweeps, calibration, validation."""
