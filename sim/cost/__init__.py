"""The cost of a step: the work in it, and models that turn work into seconds."""
