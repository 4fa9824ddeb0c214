"""Values: frames and arrays in, frames and arrays out.

Nothing below this package knows Prefect, MLflow, a network or a clock; a reader may open, for reading,
the path it is given.
"""
