"""What the Run page shows of a run, as data."""
