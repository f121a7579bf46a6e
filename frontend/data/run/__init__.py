"""What the Run page shows of one run; no components."""
