"""Benchmarks against peers, run by hand or with ``make bench``; never part of the tests."""
