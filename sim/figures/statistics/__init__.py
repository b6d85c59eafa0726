"""How sure one can be of a figure of a simulated run."""
