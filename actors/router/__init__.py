"""Choice of a replica for each request."""
