"""Keep what a run leaves behind: columns while it runs, then the files of the run directory."""
