"""The choice of a replica for each request."""
