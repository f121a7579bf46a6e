"""The journal: training processes log into files that survive the processes."""
