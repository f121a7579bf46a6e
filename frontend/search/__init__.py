"""The search field: the typed text as terms, and the runs that match all of them."""
