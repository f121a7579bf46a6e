"""Exports from the dashboard: links, files of views, lines of Python, data, pictures."""
