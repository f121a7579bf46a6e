"""Data of the dashboard: the store, its series in memory, and the data of each page."""
