"""From series in the store to figures: lines, aggregates, axes, figures."""
