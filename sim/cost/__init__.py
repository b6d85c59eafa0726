"""What a step costs: the work in it, and models that turn work into seconds."""
