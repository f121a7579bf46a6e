"""Benchmarks of the dashboard on generated stores."""
