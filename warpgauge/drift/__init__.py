"""Drift: measurements, and the decision as a pure function of them."""
