"""Benchmarks of radt.training: one module a technique, each with ``measure``."""
