"""Data of the Workload page."""
