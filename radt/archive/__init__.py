"""Runs as files that need none of our code to be read."""
