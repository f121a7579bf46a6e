"""Experiments over a cluster: each workload is a job of an engine, such as Slurm.

**From rows to jobs.** A plan for a cluster assumes a node that has whatever the rows name; the
submit host's devices do not matter. `shaping` turns each workload into the shape of its job,
reports all that can be wrong by line, and groups jobs into the arrays of a `submission`, which
lists their rows, too. `script` is the batch script; where radt is missing on a node, it makes the
attempt itself. `submit` notes each request in the shared folder (`spool`, with a folder per
`attempt`) before it asks the engine (`engine`, `slurm`), so that after a lost answer it looks for
the job instead of submitting it twice.

**From nodes to the store.** `noderunner` plans the rows that earlier attempts left and runs them
with the runner's schedule, in a folder on the node's disk (`node`) with a collector of its own,
which ends with the job. `shipping` sends the new data of each run as a bundle into the shared
folder; a run counts as ended once all of it is there. `collecting` applies the bundles on the
submit host, whose collector delivers the runs.

**From jobs to statuses.** Only the process that holds the lock of the file submits and writes
statuses. `monitor` polls the engine and the attempts and follows `settle`: pure functions from the
reports of engine and nodes to statuses, and to wait, done or submit again. `follow` adds the
terminal, the file and the collection. All of it can be stopped anywhere: the shared folder and the
engine have the state, and a hidden file beside the experiment file says where that is (`opened`).

**Runs on several nodes.** Each node has a node runner with the same plan (`multinode`). The first
claims the attempt, writes statuses and decides when a workload begins and how its runs end; the
others meet it over TCP (`link`). A node that loses the connection ends its runs. All use the clock
of the first: the others compare theirs by round trips before their collectors start, and the error
is recorded (`radt.parts`). Each sends bundles with the same run ids; `collecting` gives series of
the others numbers of their own and the node in their names.

Tests start real daemons (tests/support/slurm.py) or use the simulated engine beside it.
"""
