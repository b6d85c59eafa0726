"""Sundog from Python: functions with the options of the command line, and results as tables and plots."""
