"""Everything that adapts Quart and Hypercorn to Trio; nothing outside this room touches their internals."""
