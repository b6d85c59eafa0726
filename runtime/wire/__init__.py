"""Actors in other processes: typed frames over sockets, and Refs with the laws of local ones."""
