"""The command line: one file a command, one table of options; the only room that knows both worlds."""
