"""How the embedded model is made: a grammar that writes text, and a script that learns it."""
