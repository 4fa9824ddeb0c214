"""Order: which unit runs after which, and when to stop; the command line is `flows/__main__.py`."""
