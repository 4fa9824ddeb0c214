"""Models as MLflow serves them: each file is stored with a version as code, so nothing is pickled."""
