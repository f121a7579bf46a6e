"""Measures of recorded runs, reports of them, and comparisons between them."""
