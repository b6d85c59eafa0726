"""Files read and written, whatever is in them; the ground floor of the simulator."""
