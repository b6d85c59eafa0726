"""Records of a run: columns while it runs, then the files of the run directory."""
