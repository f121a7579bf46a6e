"""The team's servers in containers: what `radt init-stack` writes and `compose.yaml` runs."""
