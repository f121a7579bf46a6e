"""How runs share a GPU: naively, under MPS, on MIG instances.

`spec` reads a cell, `inventory` the GPUs, and `planner` plans a workload before anything changes,
for ``radt validate``, too. `setup` creates the instances (`mig`) and daemons (`mps`) and removes
exactly those, also after a crash, because the `ledger` has each of them before it exists. `verify`
checks that runs are on the devices of their rows.
"""
