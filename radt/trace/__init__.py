"""One file of a run for trace viewers: what was logged, measured and profiled, on one clock."""
