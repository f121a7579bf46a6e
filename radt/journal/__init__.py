"""The journal: what training processes log, in files that survive the processes."""
