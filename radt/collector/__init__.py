"""The collector: one process per machine that samples listeners and reads journals."""
