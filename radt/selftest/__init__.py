"""What tracking costs on this machine, measured by `radt selftest` and by benchmarks."""
