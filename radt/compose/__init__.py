"""The team's servers in containers, written by `radt init-stack` and run by `compose.yaml`."""
