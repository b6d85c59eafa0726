"""Engine processes and jobs on a Ray cluster: placement, restarts, and cleanup."""
