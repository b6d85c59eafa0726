"""HTTP in processes of its own: doors that share a port, in front of one graph."""
