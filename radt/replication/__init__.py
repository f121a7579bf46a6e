"""Bring a store to another one."""
