"""The search field: what was typed as terms, and the runs that meet them all."""
