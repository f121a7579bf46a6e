"""Where runs find their interpreter and packages: local, uv, conda, docker."""
