"""Commands of the command line that only simulate: one file, one command."""
