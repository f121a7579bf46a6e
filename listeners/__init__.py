"""Listeners: sources of hardware samples, one file each, found by entry point.

`radt.listeners.api` is their interface; read it before writing one.
"""
