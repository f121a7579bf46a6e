"""Experiment files: read, check, plan, and write statuses back."""
