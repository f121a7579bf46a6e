"""A run without a runner: the script itself asks the collector to record it."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from radt import settings
from radt.collector.client import CollectorClient
from radt.collector.manifest import Manifest, ask_for_collection, mark_ended
from radt.collector.protocol import Registration, StandaloneRun, delivery_env
from radt.collector.start import problems
from radt.devices.visible import visible_gpus
from radt.errors import RadtError
from radt.home import Home
from radt.journal.format import CLOSED_FILE, META_FILE, JournalMeta
from radt.masking import masked
from radt.model import DEFAULT_LISTENERS, ListenerChoice, RunStatus, short_id
from radt.params import command_params
from radt.paths import has_moved
from radt.procfs import start_ticks
from radt.run.notices import say, warn_once
from radt.run.parameters import read_parameters
from radt.run.target import Target
from radt.run.torch_options import INSIDE_WORDS, TRACE_WORD
from radt.run_name import row_letter
from radt.tags import COLLOCATION, DEVICES, LAUNCHED_BY, LETTER, MLFLOW_RUN, PROFILED, WORKLOAD
from radt.units import duration
from radt.user_script import user_script

_POLL_S = 0.02


def wait_for_ranks(journal: Path) -> None:
    """Return when all ranks have closed their journals or ended, or when the time is over."""
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


def _patient_until_s() -> float:
    """Until when to wait for the collector, whatever it does, by the monotonic clock."""
    patience_s = settings.variable(settings.COLLECTOR_PATIENCE_S, os.environ).value
    return time.monotonic() + float(patience_s)


def is_quiet() -> bool:
    """Whether the user wants no lines about the run: ``$RADT_QUIET``, else the settings file."""
    quiet = settings.variable(settings.QUIET)
    if quiet.level is settings.Level.VARIABLE:
        return quiet.value
    return settings.value_for_script(settings.QUIET, warn_once)


def _shown(path: Path) -> Path:
    """Return the path relative to the current folder if it is below it, and always was."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) and not has_moved() else path


def _home_option(home: Home) -> str:
    """Return the option that commands need to find a data folder from here, with a space before."""
    if home.path == Home.resolve(warn=warn_once).path and not has_moved():
        return ""
    return f" --home {shlex.quote(str(_shown(home.path)))}"


#: How long a script waits for a collector that starts or answers, if it is that patient.
_START_TIMEOUT_S = 15.0
#: How long the end of a script waits for its values to be in the store, if it is that patient.
_FINISH_TIMEOUT_S = 10.0
#: How long the first rank waits for the ends of the others; nothing is lost then.
_RANKS_TIMEOUT_S = 10.0


@dataclass(slots=True)  # freezing would cost a microsecond per block
class RunOptions:
    """What a script says of its run. None and empty mean the usual.

    ``is_session``: `radt.init` begins it. ``mlflow_run`` is the run of MLflow that it is, by its
    id at the server ``mlflow_uri``.
    """

    name: str | None = None
    experiment: str | None = None
    workload: str | None = None
    listeners: str | Sequence[str] | None = None
    params: object = None
    home: Path | str | None = None
    torch: bool | None = None
    is_session: bool = False
    mlflow_run: str = ""
    mlflow_uri: str = ""
    ranks: str | None = None


class StandaloneSession:
    """The collector's part of a ``run``, from begin to finish. Failures are warnings.

    The run's folder describes it before the collector is asked, so that whoever comes later can
    record it.
    """

    def __init__(self, target: Target, options: RunOptions) -> None:
        self._target = target
        self._client: CollectorClient | None = None
        self._connecting: threading.Thread | None = None
        self.run = _describe(target, options)
        #: Why the run's folder does not describe it.
        self._undescribed: OSError | None = None
        for problem in problems():  # the collector's log, where it says so, too, is not read
            warn_once(f"{problem}. The default is used")
        try:
            Manifest.of_this_process(self.run).write()
        except OSError as error:
            self._undescribed = error
        client = CollectorClient(
            start=True,
            timeout_s=_START_TIMEOUT_S,
            patience_s=_START_TIMEOUT_S,
            deadline_s=_patient_until_s(),
        )
        with suppress(RadtError, OSError):  # to be said by the next line
            if self._undescribed is None and not client.knock():
                self._connect_meanwhile(client)
                return
        self._connect(client)

    def _connect_meanwhile(self, client: CollectorClient) -> None:
        """Let the script begin while its collector starts; the run's folder says all until then."""
        with suppress(RadtError, OSError):  # this process may be killed before it has connected
            ask_for_collection(self._target.run_dir.path)
        self._connecting = threading.Thread(
            target=self._connect, args=(client,), name="reaching the collector", daemon=True
        )
        self._connecting.start()

    def _connected(self) -> CollectorClient | None:
        """Return the collector's client as soon as it is known whether there is one."""
        connecting = self._connecting
        if connecting is not None and connecting is not threading.current_thread():
            connecting.join()
        return self._client

    def _connect(self, client: CollectorClient) -> None:
        try:
            client.reach()
            self._take_up(client)
            self._client = client
            self._say(f"is recorded in {_shown(self._target.home.path)}")
        except (RadtError, OSError) as error:
            client.close()
            if self._undescribed is not None:
                warn_once(
                    f"the run is not recorded: {error}. Nor can its folder "
                    f"{self._target.run_dir.path} be written: "
                    f"{self._undescribed.strerror}. Training goes on"
                )
                return
            with suppress(RadtError, OSError):  # else its folder is looked for
                ask_for_collection(self._target.run_dir.path)
            warn_once(
                f"the run is not recorded yet: {error}. Training goes on; what it logs is kept in "
                f"{self._target.run_dir.path}, and recorded from there as soon as a collector "
                "answers, at the latest by `radt sync`"
            )

    def _take_up(self, client: CollectorClient) -> None:
        begun = client.begin(self.run)
        self.run = replace(self.run, name=begun.name or self.run.name)
        for warning in begun.warnings:
            warn_once(warning)

    def _say(self, predicate: str) -> None:
        """Tell the user something of the run, unless told to be quiet."""
        if not is_quiet():
            say(f"run {short_id(self._target.run_id)} ({self.run.name}) {predicate}")

    @property
    def name(self) -> str:
        """What people call the run."""
        self._connected()  # the collector numbers it
        return self.run.name

    @property
    def mlflow_run(self) -> str | None:
        """MLflow's id of the run if the script made it there."""
        return self.run.tags.get(MLFLOW_RUN)

    @property
    def recording(self) -> bool:
        """Whether the collector has the run."""
        return self._connected() is not None

    @property
    def may_be_recorded(self) -> bool:
        """Whether the collector has the run, or is starting."""
        return self._connecting is not None or self._client is not None

    @property
    def lost(self) -> bool:
        """Whether nobody will ever know of the run: what it logs has no use."""
        return self._undescribed is not None and self._client is None

    def finish(self, status: RunStatus, reason: str) -> None:
        """End the run, its journal being closed; returns when all of it is in the store."""
        if self.lost:
            return
        with suppress(OSError):  # the collector marks it once it has stored all of it
            mark_ended(self._target.run_dir.path)
        wait_for_ranks(self._target.run_dir.journal)
        client, deadline_s = self._connected(), _patient_until_s()
        try:
            if client is None:  # there may be a collector by now
                client = CollectorClient.connect(start=False, timeout_s=0.0, deadline_s=deadline_s)
                self._take_up(client)
            client.deadline_s = deadline_s
            client.finish(self._target.run_id, status, reason=reason, timeout_s=_FINISH_TIMEOUT_S)
            taken_s = (time.monotonic_ns() - self.run.started_monotonic_ns) / 1e9
            see = f"radt dashboard{_home_option(self._target.home)}"
            self._say(f"{status} in {duration(taken_s)}; see {see}")
        except (RadtError, OSError) as error:
            if self._client is not None:  # else that was said as the run began
                warn_once(f"the end of the run is not recorded yet: {error}")
        if client is not None:
            client.close()


def parse_listeners(text: str | Sequence[str] | None) -> tuple[ListenerChoice, ...]:
    """``top+smi``, ``["default", "ps@5s"]``, ``none``; None for the usual ones.

    Raises:
        UsageError: An interval cannot be understood.
    """
    if text is None:
        text = DEFAULT_LISTENERS
    parts = text.split("+") if isinstance(text, str) else list(text)
    return tuple(ListenerChoice.parse(part) for part in parts if part.strip() not in ("", "none"))


def _describe(target: Target, options: RunOptions) -> StandaloneRun:
    script = user_script()
    listeners = parse_listeners(options.listeners)
    gpus = visible_gpus()
    tracking_uri = target.home.tracking_uri(warn=warn_once)
    devices = "+".join(gpus) or "cpu"
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
    return StandaloneRun(
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
        tags=tags | _inventory(script.folder, target.run_dir.artifacts),
        pid=os.getpid(),
        started_monotonic_ns=time.monotonic_ns(),
    )


def experiment_of_script() -> str:
    """Return the experiment of runs for which the script names none."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or user_script().name


def _inventory(folder: Path, artifacts: Path) -> dict[str, str]:
    from radt.inventory import collect_inventory  # only needed here

    inventory = collect_inventory(folder, artifacts)
    for problem in inventory.problems:
        warn_once(problem)
    return inventory.tags
