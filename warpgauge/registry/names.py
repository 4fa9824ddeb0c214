"""Names of the two registered models: one spelling for the registry, the monitor, files and events."""

LAUNCH_LATENCY = "launch-latency"
DOC_QUALITY = "doc-quality"
MODEL_NAMES = (LAUNCH_LATENCY, DOC_QUALITY)
