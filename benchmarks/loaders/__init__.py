"""Benchmarks of radt.loaders: one module a target, each with ``measure``."""
