"""The content of the Run page, as data."""
