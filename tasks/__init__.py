"""Effects: files, network, clock, MLflow, Great Expectations; paths in, paths out."""
