"""How runs share a GPU: naively, under MPS, on MIG instances."""
