"""One experiment, workload or run against another: ``radt compare``."""
