"""What a script logs through MLflow becomes the run's own, and MLflow's loggers join its run.

MLflow's functions, its autologging and the loggers of Lightning, transformers and others call one
class, the client of its tracking service, whose methods are wrapped here. MLflow does what it was
asked to; then values, parameters and tags go to the journal as well.

**Which run.** A run of radt has one MLflow run in a process: radt's own; if MLflow's server is not
the one that radt uses, or radt uses none, the first that the process opens. Whatever opens a run
gets that one until the script has ended it. From then on, and for nested runs, MLflow makes runs of
their own, which are not followed.

**Nothing is uploaded twice.** What went to radt's own MLflow run is marked
(`radt.model.THROUGH_MLFLOW`), and the uploader leaves it out.

Whatever goes wrong here is said once; the script notices nothing else.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NamedTuple

from radt.clock import Clock
from radt.errors import described
from radt.home import MLFLOW_PENDING_VARIABLE, Home
from radt.journal.format import EventKind
from radt.journal.values import JournalSeries, checked_name, to_number, to_step
from radt.journal.writer import JournalWriter
from radt.model import SOFTWARE, THROUGH_MLFLOW, Scope
from radt.run.lifecycle import ActiveRun, of_process
from radt.run.notices import warn_once
from radt.run.passthrough import EXPERIMENT_VARIABLE, RUN_VARIABLE
from radt.tags import MLFLOW_NOTE, MLFLOW_PARENT_RUN_ID

#: Methods of ``mlflow.tracking._tracking_service.client.TrackingServiceClient`` that are wrapped,
#: and their parameters that are used here.
FOLLOWED: Mapping[str, tuple[str, ...]] = {
    "__init__": ("tracking_uri",),
    "create_run": ("experiment_id", "start_time", "tags", "run_name"),
    "log_batch": ("run_id", "metrics", "params", "tags"),
    "log_metric": ("run_id", "key", "value", "timestamp", "step"),
    "log_param": ("run_id", "key", "value"),
    "set_tag": ("run_id", "key", "value"),
    "set_terminated": ("run_id",),
}
#: MLflow's own names of tags and of what it measures of the machine, which radt measures itself.
_OWN_TAGS = "mlflow."
_OWN_METRICS = "system/"
_SECOND = (
    "this process has ended its MLflow run and opens another one. radt follows the first: what "
    "goes to the second is in MLflow only. Open one run around both, or nested ones in it"
)
#: MLflow's times and radt's clock differ by no more unless the wall clock was set.
_CLOCK_SLACK_NS = 50_000_000
#: A value is never older than that before its process began to follow.
_BACK_NS = 1_000_000_000


class Value(NamedTuple):
    """A value as MLflow takes it; ``time_ms`` is wall-clock time."""

    name: str
    value: Any
    time_ms: int
    step: int


@dataclass(slots=True)
class _Followed:
    """Which MLflow run is a run's, in this process."""

    #: The first that the process opened, None before.
    mlflow_id: str | None = None
    #: Whether what opens a run gets that one.
    joins: bool = True
    clock: Clock = field(default_factory=Clock.at_hand)
    since_ns: int = field(default_factory=lambda: time.monotonic_ns() - _BACK_NS)


#: By radt's ids.
_followed: dict[str, _Followed] = {}


@dataclass(slots=True)
class _Opening:
    """What begins a run where MLflow is used without one; None: nothing does."""

    begin: Callable[[], object] | None = None


_opening = _Opening()


def begin_runs_with(begin: Callable[[], object]) -> None:
    """Have the first use of MLflow's client outside of a run begin one, and all its runs join it.

    Raises:
        ImportError: MLflow has no such client.
    """
    if _opening.begin is None and install():
        _opening.begin = begin
        uri = Home.resolve(warn=warn_once).tracking_uri(warn=warn_once)
        if uri and of_process() is None:  # a run that is open has done so
            import mlflow

            mlflow.set_tracking_uri(uri)


def install() -> bool:
    """Wrap the methods of MLflow's client, once; return False if they are not as expected.

    Raises:
        ImportError: MLflow has no such module.
    """
    from mlflow.tracking._tracking_service.client import TrackingServiceClient as Client

    if hasattr(Client.log_batch, "followed_by_radt"):
        return True
    if strange := unknown_methods(Client):
        import mlflow

        warn_once(
            "what the script logs through MLflow is in MLflow only: radt does not know "
            f"{', '.join(strange)} of the client of MLflow {mlflow.__version__}"
        )
        return False
    for name in FOLLOWED:
        wrapper = _WRAPPERS[name](getattr(Client, name))
        wrapper.__dict__["followed_by_radt"] = True
        setattr(Client, name, wrapper)
    return True


def unknown_methods(client: type) -> list[str]:
    """Return which of `FOLLOWED` a class lacks, by name of method or parameter."""
    from inspect import signature  # not needed by most scripts

    strange = []
    for name, parameters in FOLLOWED.items():
        method = getattr(client, name, None)
        if not callable(method):
            strange.append(name)
            continue
        known = list(signature(method).parameters)[1 : len(parameters) + 1]
        strange += [f"{name}({given})" for given in parameters if given not in known]
    return strange


def copies(mlflow_id: str | None) -> bool:
    """Return whether what is logged to a run of MLflow is copied to the run of this process."""
    module = sys.modules.get("mlflow.tracking._tracking_service.client")
    active = of_process()
    if module is None or active is None or not mlflow_id:
        return False
    if not hasattr(module.TrackingServiceClient.log_batch, "followed_by_radt"):
        return False
    return mlflow_id in (active.mlflow.run_id, _of(active).mlflow_id)


# The wrapped methods --------------------------------------------------------------------------


def _init(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def init(client: Any, tracking_uri: Any, *rest: Any, **kw: Any) -> None:
        _guarded(lambda: _wait_for_run(tracking_uri))
        original(client, tracking_uri, *rest, **kw)
        _guarded(_take_variable)

    return init


def _create_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def create_run(
        client: Any,
        experiment_id: Any,
        start_time: Any = None,
        tags: Any = None,
        *rest: Any,
        **kw: Any,
    ) -> Any:
        run = _guarded(lambda: _join(client, tags or {}))
        if run is None:
            run = original(client, experiment_id, start_time, tags, *rest, **kw)
            _guarded(lambda: _opened(run, tags or {}))
        return run

    return create_run


def _log_metric(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def log_metric(
        client: Any, run_id: Any, key: Any, value: Any, timestamp: Any = None, step: Any = None,
        *rest: Any, **kw: Any,
    ) -> Any:  # fmt: skip
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        result = original(client, run_id, key, value, timestamp, step, *rest, **kw)
        _guarded(lambda: _copy(run_id, values=[Value(key, value, timestamp, step or 0)]))
        return result

    return log_metric


def _log_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def log_batch(
        client: Any, run_id: Any, metrics: Any = (), params: Any = (), tags: Any = (),
        *rest: Any, **kw: Any,
    ) -> Any:  # fmt: skip
        result = original(client, run_id, metrics, params, tags, *rest, **kw)
        _guarded(
            lambda: _copy(
                run_id,
                values=[
                    Value(entity.key, entity.value, entity.timestamp, entity.step)
                    for entity in metrics
                ],
                params={entity.key: entity.value for entity in params},
                tags={entity.key: entity.value for entity in tags},
            )
        )
        return result

    return log_batch


def _log_param(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def log_param(client: Any, run_id: Any, key: Any, value: Any, *rest: Any, **kw: Any) -> Any:
        result = original(client, run_id, key, value, *rest, **kw)
        _guarded(lambda: _copy(run_id, params={key: value}))
        return result

    return log_param


def _set_tag(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def set_tag(client: Any, run_id: Any, key: Any, value: Any, *rest: Any, **kw: Any) -> Any:
        result = original(client, run_id, key, value, *rest, **kw)
        _guarded(lambda: _copy(run_id, tags={key: value}))
        return result

    return set_tag


def _set_terminated(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def set_terminated(client: Any, run_id: Any, *rest: Any, **kw: Any) -> Any:
        result = original(client, run_id, *rest, **kw)
        _guarded(lambda: _ended(run_id))
        return result

    return set_terminated


_WRAPPERS: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "__init__": _init,
    "create_run": _create_run,
    "log_batch": _log_batch,
    "log_metric": _log_metric,
    "log_param": _log_param,
    "set_tag": _set_tag,
    "set_terminated": _set_terminated,
}


def _guarded(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - a tracker must never end training
        warn_once(
            f"not all that the script logs through MLflow is followed: {described(error)}. "
            "Training goes on, and MLflow has it"
        )
        return None


# Which run ------------------------------------------------------------------------------------


def _of(active: ActiveRun) -> _Followed:
    return _followed.setdefault(active.target.run_id, _Followed())


def _wait_for_run(tracking_uri: Any) -> None:
    """Let the uploader be first at radt's own MLflow: two that make one database do harm.

    A row that the runner started before MLflow had its run waits here, too.
    """
    active = of_process()
    if active is None and _opening.begin is not None:
        _opening.begin()
        active = of_process()
    if active is None:
        return
    if active.mlflow.is_pending:
        if tracking_uri == os.environ.get(MLFLOW_PENDING_VARIABLE):
            mlflow_id = active.mlflow.find_run_id()
            del os.environ[MLFLOW_PENDING_VARIABLE]
            if mlflow_id is None:
                os.environ.pop(RUN_VARIABLE, None)  # MLflow does not know the run
            else:
                os.environ[RUN_VARIABLE] = mlflow_id
                _set_experiment(active)
    elif (
        active.session is not None
        and active.session.recording
        and tracking_uri == active.target.home.tracking_uri(warn=warn_once)
    ):
        active.mlflow.find_run_id()


def _set_experiment(active: ActiveRun) -> None:
    """Have further runs of the script begin in the experiment of the run, as MLflow reads it."""
    from radt.store.reader import StoreReader

    with StoreReader(active.target.home.store_path) as reader:
        workload = reader.workload(reader.run(active.target.run_id).workload_id)
    if workload.mlflow_experiment_id is not None:
        os.environ[EXPERIMENT_VARIABLE] = workload.mlflow_experiment_id


def _take_variable() -> None:
    """Take the variable by which MLflow joins a run: here it is joined with fewer conditions.

    MLflow refuses to join by it once the script has called ``mlflow.set_experiment``.
    """
    given = os.environ.get(RUN_VARIABLE)
    active = of_process() if given else None
    if active is not None and active.mlflow.run_id == given:
        del os.environ[RUN_VARIABLE]
        _of(active).joins = True


def _join(client: Any, tags: Mapping[str, str]) -> Any:
    """Return the run that whatever opens one gets; None if MLflow shall make one."""
    active = of_process()
    if active is None or not active.recorded or MLFLOW_PARENT_RUN_ID in tags:
        return None
    followed = _of(active)
    if not followed.joins:
        warn_once(_SECOND)
        return None
    mlflow_id = active.mlflow.find_run_id() or followed.mlflow_id
    if mlflow_id is None:
        return None
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(mlflow_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None  # this is another server
        raise
    if run.info.status != "RUNNING":
        client.update_run(mlflow_id, "RUNNING")
    followed.mlflow_id = mlflow_id
    for name, text in tags.items():
        if name == MLFLOW_NOTE or not name.startswith(_OWN_TAGS):
            client.set_tag(mlflow_id, name, text)
    return client.get_run(mlflow_id)


def _opened(run: Any, tags: Mapping[str, str]) -> None:
    """Note that MLflow made a run."""
    active = of_process()
    if active is not None and active.recorded and MLFLOW_PARENT_RUN_ID not in tags:
        followed = _of(active)
        if followed.joins and followed.mlflow_id is None:
            followed.mlflow_id = run.info.run_id


def _ended(mlflow_id: str) -> None:
    """Note that the script ended a run of MLflow."""
    active = of_process()
    if active is not None and (followed := _of(active)).mlflow_id == mlflow_id:
        followed.joins = _opening.begin is not None


# What was logged ------------------------------------------------------------------------------


def _copy(
    mlflow_id: str,
    values: Iterable[Value] = (),
    params: Mapping[str, Any] | None = None,
    tags: Mapping[str, Any] | None = None,
) -> None:
    active = of_process()
    if active is None or not isinstance(active.journal, JournalWriter):
        return
    followed = _of(active)
    at_mlflow = mlflow_id == active.mlflow.run_id
    if not at_mlflow and mlflow_id != followed.mlflow_id:
        return
    for value in values:
        if not value.name.startswith(_OWN_METRICS):
            name = checked_name(value.name)
            if at_mlflow:
                name = JournalSeries(SOFTWARE, name, "", Scope.RUN, method=THROUGH_MLFLOW).name
            at_ns = _monotonic_ns(value.time_ms, followed)
            active.journal.sample(name, to_number(value.value), to_step(value.step), at_ns)
    if params:
        texts = {name: str(value) for name, value in params.items()}
        active.journal.say(EventKind.PARAMS, values=texts)
    if tags:
        texts = {n: str(value) for n, value in tags.items() if not n.startswith(_OWN_TAGS)}
        if texts:
            active.journal.say(EventKind.TAGS, values=texts)


def _monotonic_ns(time_ms: int, followed: _Followed) -> int:
    """Return MLflow's time on radt's clock, to the same millisecond unless the clock was set."""
    now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
    ago_ns = wall_ns - time_ms * 1_000_000
    exact_ns = time_ms * 1_000_000 - followed.clock.offset_ns
    at_ns = exact_ns if abs(now_ns - ago_ns - exact_ns) < _CLOCK_SLACK_NS else now_ns - ago_ns
    return min(max(at_ns, followed.since_ns), now_ns)
