"""Runs workloads: processes, barrier, logs, progress."""
