"""Runs of MLflow that radt never saw, beside those of the store."""
