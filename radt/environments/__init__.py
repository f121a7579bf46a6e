"""Environments that provide runs with an interpreter and packages: local, uv, conda, docker."""
