"""The collector: one process a machine that samples listeners and reads journals."""
