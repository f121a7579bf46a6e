"""Deliver the store's contents to MLflow, to Postgres and into archives."""
