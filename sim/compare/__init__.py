"""`sundog compare`: what differs between runs, and how sure that is."""
