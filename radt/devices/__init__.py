"""The devices of machines and of runs: GPUs and CPUs."""
