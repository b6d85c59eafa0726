"""Reading and writing of files, whatever their contents; the lowest layer of the simulator."""
