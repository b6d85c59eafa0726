"""Engine cores in processes of their own: how they are started, watched and ended."""
