"""What the page of one workload shows: its life, its devices, who used what, its files."""
