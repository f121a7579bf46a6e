"""Data echoing: use each decoded sample several times, then fine-tune on fresh data."""
