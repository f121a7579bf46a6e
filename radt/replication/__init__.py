"""Brings a store on this machine to one in Postgres, row by row, for good.

`replicate` is the process, `replicator` its loop, `run_copy` the plan for one run, `remote` the
other side, `local` this one.
"""
