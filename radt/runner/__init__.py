"""Run workloads on this machine: processes, barrier, logs, progress.

`start` is one start of an experiment. It asks an `executor` what is pending and has it run that:
`schedule` on this machine, `radt.cluster.executor` on a cluster. `workload` runs one workload:

1. *Record* (`preparation`): ids, folders, rows of the store, collector, MLflow. Runs only need the
   folders: the collector can record them later from the files there (`radt.collector.manifest`).
2. *Set up* (`provision`): environments, CPUs, busy devices, MIG instances, MPS daemons. Each of
   them is noted in a ledger on disk before it is created (`radt.collocation.ledger`).
3. *Start* (`process`, `keeper`): each row waits in its keeper for the end of one pipe, so closing
   it releases all rows at one instant. The spread of their start times is the start skew. With
   ``--sync context`` they wait again as they enter ``with radt.Run()`` (`barrier`).
4. *Follow* (`follow`, `outcome`): signals, timeouts, ends, and whether each run is on its device.
5. *Clean up*: exactly what was created.

`work_queue` has what is left of a start. It puts rows of the workload ``auto`` into workloads
(`auto`), by a policy that is a pure function (`placement`).

A row has one class in each phase::

    Row              in the file                          radt.experiment.row
    RunPlan          planned, in a WorkloadPlan           radt.experiment.plan
    PendingWorkload  to be run now                        options
    RecordedRun      has an id and rows in the store      preparation
    LaunchSpec       has its command and environment      provision
    ActiveRun        has a keeper and a process           active
    Exit             has an exit code                     process
    RunEnd           has a status and a reason            outcome

`progress` is the one model of an experiment under way. The runner fills it in as its rows run and
returns it at the end; `local_watch` reads it from another process. The live table, ``radt
status``, ``radt attach``, its JSON and notifications show it (`live`, `console`, `notify`). A
`watch.Watcher` looks, follows and stops; `radt.cluster.watch` has the one for jobs. Both have one
contract test, tests/cluster/test_watching.py.

`keeper` and `exit_recorder` are programs that import nothing of radt. SQLAlchemy and
numpy are imported only once rows run (`radt.store.peek`).
"""
