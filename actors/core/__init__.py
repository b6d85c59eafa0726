"""The functional core: what decides, as pure state machines over the standard library alone."""
