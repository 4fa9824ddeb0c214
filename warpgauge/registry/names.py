"""Names of the registered models: one spelling for the registry, the monitor, files and events."""

LAUNCH_LATENCY = "launch-latency"
DOC_QUALITY = "doc-quality"
# The two that every project has; a table that a spec describes adds one of its own.
MODEL_NAMES = (LAUNCH_LATENCY, DOC_QUALITY)
TABLE_PREFIX = "latency-"


def table_model_name(table: str) -> str:
    """Name of the model of a latency table that a spec calls so.

    >>> table_model_name("h200-gemm")
    'latency-h200-gemm'
    """
    return TABLE_PREFIX + table


def is_table_model(name: str) -> bool:
    """Whether a model learned from a table that a spec describes."""
    return name.startswith(TABLE_PREFIX)
