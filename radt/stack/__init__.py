"""The servers of a team: Postgres, S3, MLflow."""
