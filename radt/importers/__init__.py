"""Import runs that other programs recorded: MLflow, CSV logs."""
