"""Endurance: many requests, kind and unkind, after which a server must be as it was."""
