"""Figures that follow from a run: metrics, intervals, comparisons, sweeps, calibration, validation."""
