"""The collector: one process per machine and user that samples listeners and reads journals.

The `guardian` keeps the `worker` running, whose `service` answers the requests of each `client`
over a socket (`protocol`). Its threads:

- a listener's thread (`sampling`) reads it at each tick and gives each run its readings (`routing`,
  `runs`);
- a store's thread (`sink`) writes all runs of a store in one transaction: their readings, their
  journals (`recorder`, `journal_import`) and the position in them;
- a finder (`run_finder`) looks for runs that no collector records.

`recovery` ends runs that no collector finished, with the same `recorder`; `ledger` counts what was
expected and received; `delivery` starts the processes that upload.

`client`, `protocol`, `manifest` and `start` import the standard library only, because training
processes use them.
"""
