"""The launch-latency model."""
