"""Deliver runs to MLflow: their metrics, params, tags, artifacts and archives."""
