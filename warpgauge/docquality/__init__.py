"""The documentation-quality model."""
