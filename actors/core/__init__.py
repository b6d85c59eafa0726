"""The functional core: all decisions, as pure state machines over the standard library alone."""
