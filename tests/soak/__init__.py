"""Endurance tests: after many requests, valid and hostile, a server must be as before."""
