"""Exports from the dashboard: links, files of views, Python code, data, pictures."""
