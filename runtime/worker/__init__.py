"""Engine cores in processes of their own: start, supervision and end."""
