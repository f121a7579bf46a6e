"""Describe a run without a runner: the script's options, its command, devices and tags."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from radt import settings
from radt.collector.protocol import Registration, RunRequest, delivery_env
from radt.journal.format import CLOSED_FILE, META_FILE, JournalMeta
from radt.masking import masked
from radt.model import DEFAULT_LISTENERS, ListenerChoice
from radt.params import command_params
from radt.procfs import start_ticks
from radt.run.notices import warn_once
from radt.run.parameters import read_parameters
from radt.run.target import RunTarget
from radt.run.torch_options import INSIDE_WORDS, TRACE_WORD
from radt.run.user_script import user_script
from radt.run_name import row_letter
from radt.tags import COLLOCATION, DEVICES, LAUNCHED_BY, LETTER, MLFLOW_RUN, PROFILED, WORKLOAD

_POLL_S = 0.02


def wait_for_ranks(journal: Path) -> None:
    """Wait until all ranks have closed their journals or ended, or until the timeout."""
    deadline = time.monotonic() + _RANKS_TIMEOUT_S
    while any(_writing(folder) for folder in journal.glob("*-*")):
        if time.monotonic() >= deadline:
            return
        time.sleep(_POLL_S)


def _writing(folder: Path) -> bool:
    try:
        meta = JournalMeta.from_json(json.loads((folder / META_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return False
    if meta.rank is None or not meta.main or meta.pid == os.getpid():
        return False
    return not (folder / CLOSED_FILE).exists() and start_ticks(meta.pid) == meta.start_ticks


def is_quiet() -> bool:
    """Return True if the user wants no lines about the run: ``$RADT_QUIET`` or settings file."""
    return settings.value_for_script(settings.QUIET, warn_once)


#: Timeout for the ends of the other ranks. Nothing is lost if it passes.
_RANKS_TIMEOUT_S = 10.0


@dataclass(slots=True)  # frozen=True would cost a microsecond per block
class RunOptions:
    """A script's options for its run. None and empty values mean the default.

    ``is_session`` is True if `radt.init` begins it, ``is_off`` if nothing is recorded.
    ``mlflow_run`` is the id of the MLflow run that it represents, at the server ``mlflow_uri``.
    """

    name: str | None = None
    experiment: str | None = None
    workload: str | None = None
    listeners: str | Sequence[str] | None = None
    params: object = None
    home: Path | str | None = None
    torch: bool | None = None
    is_session: bool = False
    is_off: bool = False
    mlflow_run: str = ""
    mlflow_uri: str = ""
    ranks: str | None = None


def parse_listeners(text: str | Sequence[str] | None) -> tuple[ListenerChoice, ...]:
    """Parse ``top+smi``, ``["default", "ps@5s"]`` or ``none``. None means the default listeners.

    Raises:
        UsageError: An interval is not valid.
    """
    if text is None:
        text = DEFAULT_LISTENERS
    parts = text.split("+") if isinstance(text, str) else list(text)
    return tuple(ListenerChoice.parse(part) for part in parts if part.strip() not in ("", "none"))


def describe(target: RunTarget, options: RunOptions) -> RunRequest:
    script = user_script()
    listeners = parse_listeners(options.listeners)
    gpus, devices = _devices()
    tracking_uri = target.home.tracking_uri(warn=warn_once)
    params = command_params(script.file, shlex.join(script.arguments), script.arguments)
    tags = {DEVICES: devices, COLLOCATION: "-"}
    if any(choice.name == TRACE_WORD for choice in listeners):
        tags[PROFILED] = TRACE_WORD
    if options.mlflow_run and options.mlflow_uri == masked(tracking_uri):
        tags[MLFLOW_RUN] = options.mlflow_run
    experiment = options.experiment or experiment_of_script()
    launch = target.launch
    workload = options.workload or (launch.workload if launch is not None else "")
    letter = row_letter(launch.rank if launch is not None else 0)
    if workload:
        tags |= {WORKLOAD: workload, LETTER: letter}
    if target.launched_by:
        tags[LAUNCHED_BY] = target.launched_by
    name = options.name or (script.name if options.workload else script.run_name)
    return RunRequest(
        registration=Registration(
            run_id=target.run_id,
            store_path=str(target.home.store_path),
            spool=str(target.run_dir.path),
            tracking_uri=tracking_uri,
            store_uri=target.home.store_uri(tracking_uri=tracking_uri, warn=warn_once),
            listeners=tuple(choice for choice in listeners if choice.name not in INSIDE_WORDS),
            devices=gpus,
            env=delivery_env(os.environ),
        ),
        workload_id=uuid.uuid4().hex if launch is None else launch.digest(experiment, workload),
        experiment=experiment,
        workload=workload,
        letter=letter,
        name=name + target.name_suffix,
        is_numbered=not (options.name or workload),
        command=shlex.join(sys.orig_argv),
        host=socket.gethostname(),
        devices=devices,
        params={name: text for name, text in params.items() if text}
        | read_parameters(options.params),
        tags=tags | _provenance(script.folder, target.run_dir.artifacts),
        pid=os.getpid(),
        started_monotonic_ns=time.monotonic_ns(),
    )


def experiment_of_script() -> str:
    """Return the experiment for runs whose script does not name one."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or user_script().name


def _devices() -> tuple[tuple[str, ...], str]:
    """Return the UUIDs of the GPUs or MIG devices visible to CUDA, and their name in runs.

    The name is ``cpu`` without devices.
    """
    # Imported here because a script that records nothing does not need it.
    from radt.devices.gpus import Gpus
    from radt.devices.visible import UNKNOWN, offered_devices

    visible = offered_devices(Gpus.read())
    if visible.unknown:
        warn_once(f"the run's GPUs are not recorded: {visible.reason}")
        return (), UNKNOWN
    uuids = tuple(device.uuid for device in visible.devices) + visible.unread
    return uuids, "+".join((*map(str, visible.devices), *visible.unread)) or "cpu"


def _provenance(folder: Path, artifacts: Path) -> dict[str, str]:
    from radt.provenance import collect_provenance  # only needed here

    provenance = collect_provenance(folder, artifacts)
    for problem in provenance.problems:
        warn_once(problem)
    return provenance.tags
