"""Figures drawn from the store's series: lines, aggregates, axes, traces."""
