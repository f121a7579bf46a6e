"""Export a run for trace viewers: logged, measured and profiled data in one file, on one clock."""
