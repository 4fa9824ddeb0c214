"""Launches: readers of files that hold launch records, and the simulator."""
