"""Copy a store on this machine to a store in Postgres, row by row, without loss.

`__main__` is the process, `replicator` its loop, `run_copy` the plan for one run, `shipment` the
content of one transaction, `remote` the database, `local` the store on this machine and the cursor.
"""
