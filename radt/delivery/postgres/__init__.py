"""Copy a store on this machine to a store in Postgres, without loss.

`__main__` is the process, `replicator` its loop, `run_copy` the schedule of a run, `shipment` the
batches of one transaction and the rules of small tables, `target` the database, `contents` the
verification, and `local` the runs and workloads that are due.
"""
