"""Source of the embedded model: a grammar that writes text, and a script that trains on it."""
