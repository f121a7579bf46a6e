"""What the page Report shows: tables and bars of `radt.report`."""
