"""Engine processes and jobs on a Ray cluster: where they are placed, begun again, and ended."""
