"""What the dashboard reads: the store, its series in memory, and the data of each page."""
