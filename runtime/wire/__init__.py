"""Actors in other processes: typed frames over sockets, and Refs that keep the laws of local ones."""
