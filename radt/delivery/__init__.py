"""Deliver what the store holds to MLflow, to Postgres and into archives."""
