"""All that talks to MLflow."""
