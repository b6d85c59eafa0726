"""What clients may send: the bodies, their fields and bounds, and what is refused by name."""
