"""Imports of runs that other programs recorded: MLflow today."""
