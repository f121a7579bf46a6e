"""The search field: parse the typed text into terms, and find the runs that match all of them."""
