"""Imports of runs that other programs recorded: MLflow, TensorBoard, W&B, CSV logs."""
