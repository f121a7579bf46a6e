"""Answer radt's claims about GPUs on this machine: `python -m benchmarks.gpu_check`."""
