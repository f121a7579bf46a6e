"""Names of the tags that radt writes."""

from __future__ import annotations

#: Number of CPUs that the runner may give to runs (its own affinity); the same for a pinned run.
CPU_COUNT = "radt.cpu_count"
#: CPU numbers that the run was pinned to, such as ``0-3,8``; only present on a pinned run.
CPUS = "radt.cpus"
#: The profiler that slowed the run down. Comparisons leave its workload out unless asked.
PROFILED = "radt.profiled"
#: Of the other runs of its workload: the letters of those that were profiled beside it.
PROFILED_BESIDE = "radt.profiled_beside"
#: What a profiler has not done, and why.
PROFILER_PROBLEM = "radt.profiler_problem"
#: What the user has to do for a profiler.
PROFILER_NOTICE = "radt.profiler_notice"
#: When the run's samples were thinned, and to how many (`radt prune`).
PRUNED = "radt.pruned"
#: State in its source of a run that `radt import` imported, at the time of the import.
IMPORTED = "radt.imported"
#: CPU seconds of the collector and what it started, from the run's start to its end.
TRACKER_CPU_S = "radt.tracker.cpu_s"
#: What the run's processes wrote into their journals.
TRACKER_JOURNAL_BYTES = "radt.tracker.journal_bytes"

# -- written when the run is recorded -------------------------------------------------------------

#: ``service`` for a run that serves the others of its workload (`radt.model.Role`).
ROLE = "radt.role"
#: Id of the run whose process trains this one, among others (`radt.Run.child`).
PARENT = "radt.parent"
#: MLflow's id of a run that the script made in MLflow itself, for the uploader to go on with.
MLFLOW_RUN = "radt.mlflow_run"
#: Id of the ended run whose process started this one's, or the job that did.
LAUNCHED_BY = "radt.launched_by"
#: The row's letter within its workload: ``a``, ``b``.
LETTER = "radt.letter"
#: GPUs as the Devices column names them.
DEVICES = "radt.devices"
#: How the row shares its GPU: ``-``, ``MPS`` or a MIG profile.
COLLOCATION = "radt.collocation"
#: Listeners of the run, with plus signs between them.
LISTENERS = "radt.listeners"
#: The process that answers for the run until the collector knows of it, too (`Owner`).
RUNNER = "radt.runner"
#: The options of the start that ran it, such as ``--repeat 3``: `radt status` shows how to resume.
START = "radt.start"
#: Number of the repeat and how many there are: ``2/3``; only on repeated workloads.
REPEAT = "radt.repeat"
#: The name that the repeats of a workload share.
SERIES = "radt.series"
#: On a cluster: the submission, its job (`radt.cluster.spool.JobKey`) and which start of it.
CLUSTER_SUBMISSION = "radt.cluster.submission"
CLUSTER_JOB = "radt.cluster.job"
CLUSTER_ATTEMPT = "radt.cluster.attempt"
#: The engine's id of that job, such as ``1234_7``, and its name of the node.
CLUSTER_JOB_ID = "radt.cluster.job_id"
CLUSTER_NODE = "radt.cluster.node"
#: How many nodes the run is spread over, and the parts on all but the first (`radt.parts`).
CLUSTER_NODES = "radt.cluster.nodes"
CLUSTER_PARTS = "radt.cluster.parts"
#: The kind of machine that the node is: other nodes of it may have the run's baseline.
CLUSTER_HARDWARE = "radt.cluster.hardware"
#: The attempt that took the place of the run's: the run counts for nothing.
CLUSTER_SUPERSEDED = "radt.cluster.superseded"

# -- written by people (`radt.store.notes`) -------------------------------------------------------

#: `YES` or ``no``.
STARRED = "radt.starred"
ARCHIVED = "radt.archived"
#: Before the key of a tag that somebody changed in a Postgres store: what the machine of the run
#: sends later does not undo it. `YES`, or ``no`` as long as MLflow has not got it.
EDITED = "radt.edited."
YES = "yes"

# -- written when the run is created in MLflow ----------------------------------------------------

#: radt's id of the run.
RUN_ID = "radt.run_id"
#: radt's id of the workload; on the workload's own MLflow run, too.
WORKLOAD_ID = "radt.workload_id"
#: The workload's label; also on the workload's own MLflow run.
WORKLOAD = "radt.workload"
#: The Experiment column as the user wrote it.
EXPERIMENT = "radt.experiment"

# -- written when the run has ended in MLflow -----------------------------------------------------

#: `radt.model.RunStatus`; MLflow knows fewer.
STATUS = "radt.status"
#: Why the run ended, if radt ended it or knows the reason.
END_REASON = "radt.end_reason"
#: Exit code of the script.
EXIT_CODE = "radt.exit_code"
#: Followed by an MLflow key: the name of the series, which MLflow does not accept as it is.
METRIC_PREFIX = "radt.metric."

# -- written by the inventory before the run starts -----------------------------------------------

#: Host name.
HOST = "radt.host"
#: Model of the CPU.
CPU = "radt.cpu"
#: Version of NVIDIA's driver.
DRIVER = "radt.driver"
#: Names of the machine's GPUs, with commas between them.
GPUS = "radt.gpus"
#: Version of the run's Python.
PYTHON = "radt.python"
#: Commit of the repository that holds the script.
GIT_COMMIT = "radt.git.commit"
#: ``true`` if tracked files of that repository had changes.
GIT_DIRTY = "radt.git.dirty"

# -- written when the devices of a run are set up, and when it has ended --------------------------

#: Free memory of a GPU before the run started; ``index`` is NVML's.
GPU_MEMORY_FREE_BYTES = "radt.gpu{index}.memory_free_bytes"
#: Of the run's MIG device.
MIG_PROFILE = "radt.mig.profile"
MIG_UUID = "radt.mig.uuid"
#: ``true`` if radt created the instance.
MIG_CREATED = "radt.mig.created"
#: As nvidia-smi writes it, ``start:size``.
MIG_PLACEMENT = "radt.mig.placement"
MIG_SM_COUNT = "radt.mig.sm_count"
MIG_MEMORY_FREE_BYTES = "radt.mig.memory_free_bytes"
#: How many runs share the MPS daemon.
MPS_CLIENTS = "radt.mps.clients"
MPS_THREAD_PERCENTAGE = "radt.mps.thread_percentage"
MPS_DAEMON_PID = "radt.mps.daemon_pid"
#: Whether the run was seen on its devices (`radt.collocation.verify.Verdict`), and why not.
VERIFIED = "radt.verified"
VERIFIED_REASON = "radt.verified.reason"

# -- MLflow's own, as its pages read them ---------------------------------------------------------

MLFLOW_PARENT_RUN_ID = "mlflow.parentRunId"
MLFLOW_USER = "mlflow.user"
MLFLOW_SOURCE_TYPE = "mlflow.source.type"
MLFLOW_SOURCE_NAME = "mlflow.source.name"
#: Shown as "Version".
MLFLOW_GIT_COMMIT = "mlflow.source.git.commit"
#: The run's name, also where it changes.
MLFLOW_RUN_NAME = "mlflow.runName"
#: What people say of the run, in Markdown; shown as "Description".
MLFLOW_NOTE = "mlflow.note.content"
