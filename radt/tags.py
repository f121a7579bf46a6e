"""Names of the tags that radt writes."""

from __future__ import annotations

#: Number of CPUs that the runner may assign to runs; pinning a run does not change it.
CPU_COUNT = "radt.cpu_count"
#: Memory limit in bytes of the runner's control groups; absent without a limit.
MEMORY_LIMIT = "radt.memory_limit_bytes"
#: CPU numbers that the run was pinned to, such as ``0-3,8``; only on pinned runs.
CPUS = "radt.cpus"
#: Profiler that slowed the run down. Comparisons exclude its workload by default.
PROFILED = "radt.profiled"
#: On the other runs of its workload: the letters of the runs that were profiled.
PROFILED_BESIDE = "radt.profiled_beside"
#: What a profiler failed to do, and why.
PROFILER_PROBLEM = "radt.profiler_problem"
#: What the user has to do to use a profiler.
PROFILER_NOTICE = "radt.profiler_notice"
#: When the run's samples were thinned, and to how many (`radt prune`).
PRUNED = "radt.pruned"
#: State of an imported run in its source at the time of `radt import`.
IMPORTED = "radt.imported"
#: CPU seconds of the collector and its child processes, from the run's start to its end.
TRACKER_CPU_S = "radt.tracker.cpu_s"
#: Bytes that the run's processes wrote to their journals.
TRACKER_JOURNAL_BYTES = "radt.tracker.journal_bytes"

# -- written when the run is recorded -------------------------------------------------------------

#: ``service`` for a run that serves the others of its workload (`radt.model.Role`).
ROLE = "radt.role"
#: Id of the run whose process also trains this run (`radt.Run.child`).
PARENT = "radt.parent"
#: MLflow's id of a run that the script created in MLflow itself; the uploader continues that one.
MLFLOW_RUN = "radt.mlflow_run"
#: Id of the ended run whose process or job started this run's process.
LAUNCHED_BY = "radt.launched_by"
#: The row's letter within its workload: ``a``, ``b``.
LETTER = "radt.letter"
#: GPUs as the Devices column names them.
DEVICES = "radt.devices"
#: How the row shares its GPU: ``-``, ``MPS`` or a MIG profile.
COLLOCATION = "radt.collocation"
#: Why radt put the run into its workload (`radt.runner.auto`); only on rows of ``auto``.
GROUPED_BY = "radt.grouped_by"
#: Listeners of the run, with plus signs between them.
LISTENERS = "radt.listeners"
#: The process responsible for the run until the collector knows it (`ProcessOwner`).
RUNNER = "radt.runner"
#: Options of the start that ran it, such as ``--repeat 3``, for the resume hint of `radt status`.
START = "radt.start"
#: Number of this repeat and of all repeats, such as ``2/3``; only on repeated workloads.
REPEAT = "radt.repeat"
#: Name shared by the repeats of a workload.
SERIES = "radt.series"
#: On a cluster: the submission, its job (`radt.cluster.submission.JobKey`) and the number of the
#: attempt.
CLUSTER_SUBMISSION = "radt.cluster.submission"
CLUSTER_JOB = "radt.cluster.job"
CLUSTER_ATTEMPT = "radt.cluster.attempt"
#: The engine's id of the job, such as ``1234_7``, and its name of the node.
CLUSTER_JOB_ID = "radt.cluster.job_id"
CLUSTER_NODE = "radt.cluster.node"
#: Number of nodes that the run spans, and the parts on all nodes but the first (`radt.parts`).
CLUSTER_NODES = "radt.cluster.nodes"
CLUSTER_PARTS = "radt.cluster.parts"
#: Hardware type of the node. The run's baseline may come from other nodes of the same type.
CLUSTER_HARDWARE = "radt.cluster.hardware"
#: The attempt that replaced this run's attempt: the run is ignored.
CLUSTER_SUPERSEDED = "radt.cluster.superseded"

# -- written by people (`radt.store.notes`) -------------------------------------------------------

#: `YES` or ``no``.
STARRED = "radt.starred"
ARCHIVED = "radt.archived"
#: Prefix of the key of a tag that somebody edited in a Postgres store. Later uploads from the run's
#: machine do not undo the edit. `YES`, or ``no`` until MLflow has the edit.
EDITED = "radt.edited."
YES = "yes"

# -- written when the run is created in MLflow ----------------------------------------------------

#: radt's id of the run.
RUN_ID = "radt.run_id"
#: radt's id of the workload; also on the workload's own MLflow run.
WORKLOAD_ID = "radt.workload_id"
#: The workload's label; also on the workload's own MLflow run.
WORKLOAD = "radt.workload"
#: The Experiment column as the user wrote it.
EXPERIMENT = "radt.experiment"

# -- written when the run has ended in MLflow -----------------------------------------------------

#: `radt.model.RunStatus`; MLflow has fewer statuses.
STATUS = "radt.status"
#: Why the run ended, if radt ended it or knows the reason.
END_REASON = "radt.end_reason"
#: Exit code of the script.
EXIT_CODE = "radt.exit_code"
#: Prefix of an MLflow metric key. The value is the series' name, which MLflow does not accept.
METRIC_PREFIX = "radt.metric."

# -- written by the inventory before the run starts -----------------------------------------------

#: Host name.
HOST = "radt.host"
#: Model of the CPU.
CPU = "radt.cpu"
#: Version of NVIDIA's driver.
DRIVER = "radt.driver"
#: Comma-separated names of the machine's GPUs.
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
#: The run's MIG device.
MIG_PROFILE = "radt.mig.profile"
MIG_UUID = "radt.mig.uuid"
#: ``true`` if radt created the instance.
MIG_CREATED = "radt.mig.created"
#: ``start:size``, in nvidia-smi's notation.
MIG_PLACEMENT = "radt.mig.placement"
MIG_SM_COUNT = "radt.mig.sm_count"
MIG_MEMORY_FREE_BYTES = "radt.mig.memory_free_bytes"
#: Number of runs that share the MPS daemon.
MPS_CLIENTS = "radt.mps.clients"
MPS_THREAD_PERCENTAGE = "radt.mps.thread_percentage"
MPS_DAEMON_PID = "radt.mps.daemon_pid"
#: Whether the run was observed on its devices (`radt.collocation.verify.Verdict`), and why not.
VERIFIED = "radt.verified"
VERIFIED_REASON = "radt.verified.reason"

# -- MLflow's own tags, which its pages read ------------------------------------------------------

MLFLOW_PARENT_RUN_ID = "mlflow.parentRunId"
MLFLOW_USER = "mlflow.user"
MLFLOW_SOURCE_TYPE = "mlflow.source.type"
MLFLOW_SOURCE_NAME = "mlflow.source.name"
#: Shown as "Version".
MLFLOW_GIT_COMMIT = "mlflow.source.git.commit"
#: The run's name; MLflow reads changes from here, too.
MLFLOW_RUN_NAME = "mlflow.runName"
#: Users' description of the run, in Markdown; shown as "Description".
MLFLOW_NOTE = "mlflow.note.content"
