"""What follows from a run: metrics, intervals, comparisons, sweeps, calibration, validation."""
