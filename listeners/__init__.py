"""Listeners: sources of hardware samples, one file each, found by entry point."""
