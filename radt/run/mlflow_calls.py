"""Copy what a script logs through MLflow into its run, and let MLflow's loggers join the run.

MLflow's functions, its autologging and the loggers of Lightning, transformers and others all use
one class, the client of the tracking service. Its methods are wrapped here: MLflow does its work
first, then values, parameters and tags go to the journal as well.

**Which run.** Each MLflow run is a run of radt. The first MLflow run that a script opens within a
run of radt (a block or a row) is that run's own MLflow run, if MLflow's server is the one that radt
uses. Further and nested MLflow runs are children. With `radt.autolog`, MLflow runs opened outside
of any run become runs of the script. MLflow creates all of these, and the uploader continues them
(`radt.tags.MLFLOW_RUN`).

**Nothing is uploaded twice.** Values that went to a run's own MLflow run are marked
(`radt.model.THROUGH_MLFLOW`), and the uploader skips them.

Any failure here is reported once and has no other effect on the script.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from threading import RLock
from typing import Any, NamedTuple, Protocol

from radt.clock import Clock
from radt.home import MLFLOW_PENDING_VARIABLE, Home
from radt.journal.format import EventKind
from radt.journal.values import JournalSeries, checked_name, to_number, to_step
from radt.journal.writer import JournalWriter
from radt.masking import masked
from radt.model import SOFTWARE, THROUGH_MLFLOW, RunStatus, Scope
from radt.run.exits import exit_of_process
from radt.run.notices import guarded, warn_once
from radt.run.open_runs import (
    OpenRun,
    begin,
    ending_of,
    finish,
    make_current,
    make_former,
    of_process,
)
from radt.run.passthrough import RUN_VARIABLE, resumed_id
from radt.run.standalone import RunOptions
from radt.tags import MLFLOW_NOTE, MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME, MLFLOW_SOURCE_NAME

#: Prefixes of MLflow's internal tags and of its system metrics, which radt measures itself.
_OWN_TAGS = "mlflow."
_OWN_METRICS = "system/"
#: MLflow's times and radt's clock differ by at most this much, unless the wall clock was set.
_CLOCK_SLACK_NS = 50_000_000
#: No value is older than this before the moment at which its process began to follow.
_BACK_NS = 1_000_000_000


class Value(NamedTuple):
    """A value as MLflow takes it. ``time_ms`` is wall-clock time."""

    name: str
    value: Any
    time_ms: int
    step: int


@dataclass(slots=True, eq=False)
class _Followed:
    """An MLflow run whose values are copied to an open run.

    ``is_own`` is True for the open run's own MLflow run, and False for a run at another server.
    With ``ends_run``, the open run was begun for this MLflow run and ends with it; ``before`` was
    the current run until then.
    """

    open_run: OpenRun
    is_own: bool
    ends_run: bool = False
    before: OpenRun | None = None
    clock: Clock = field(default_factory=Clock.at_hand)
    since_ns: int = field(default_factory=lambda: time.monotonic_ns() - _BACK_NS)


class Server(Protocol):
    """radt's MLflow server, for MLflow runs that a script opens before any run of radt."""

    def prepare(self, tracking_uri: str) -> None:
        """Create or migrate the database of a data folder before a client connects to it."""

    def experiment(self, tracking_uri: str) -> str | None:
        """Return the id of the script's experiment; None for another MLflow server."""


@dataclass(slots=True)
class _State:
    """The followed MLflow runs by id, and the server if MLflow runs may begin runs of radt."""

    followed: dict[str, _Followed] = field(default_factory=dict)
    server: Server | None = None
    lock: RLock = field(default_factory=RLock)


_state = _State()


def begin_runs(server: Server) -> None:
    """Make MLflow runs that are opened outside of any run become runs of radt.

    Raises:
        ImportError: MLflow has no such client.
    """
    if _state.server is None and install():
        _state.server = server
        uri = Home.resolve(warn=warn_once).tracking_uri(warn=warn_once)
        if uri and of_process() is None:  # an open run has already set the URI
            import mlflow

            mlflow.set_tracking_uri(uri)


def install() -> bool:
    """Wrap the methods of MLflow's client once. Return False if they are not as expected.

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
    for name, follower in FOLLOWED.items():
        setattr(Client, name, _wrapped(getattr(Client, name), follower))
    return True


def unknown_methods(client: type) -> list[str]:
    """Return the methods and parameters of `FOLLOWED` that a class lacks."""
    strange = []
    for name, follower in FOLLOWED.items():
        method = getattr(client, name, None)
        if not callable(method):
            strange.append(name)
            continue
        known = signature(method).parameters
        strange += [f"{name}({given})" for given in follower.parameters if given not in known]
    return strange


def copies(mlflow_id: str | None) -> bool:
    """Return True if what is logged to an MLflow run is copied to a run of radt."""
    return bool(mlflow_id) and _followed(str(mlflow_id)) is not None


def default_experiment() -> str | None:
    """Return the experiment id for MLflow runs for which the script chose no experiment.

    It is the experiment of the current run, or that of the script with `radt.autolog`. None leaves
    the choice to MLflow.
    """
    import mlflow

    open_run, uri = of_process(), mlflow.get_tracking_uri()
    if open_run is None:
        return _state.server.experiment(uri) if _state.server is not None else None
    target = open_run.target
    if uri != target.home.tracking_uri(warn=warn_once):
        return None
    mlflow_id = open_run.backend.mlflow.find_run_id()
    return None if mlflow_id is None else str(mlflow.get_run(mlflow_id).info.experiment_id)


# Which run ------------------------------------------------------------------------------------


def _followed(mlflow_id: str) -> _Followed | None:
    """Return the open run that receives what is logged to an MLflow run."""
    known = _state.followed.get(mlflow_id)
    if known is None:
        open_run = of_process()
        if open_run is None or open_run.backend.mlflow.run_id != mlflow_id:
            return None
        known = _state.followed[mlflow_id] = _Followed(open_run, is_own=True)
    return None if known.open_run.ended and known.open_run.is_own else known


def _wait_for_run(tracking_uri: Any) -> None:
    """Let the uploader open radt's own MLflow first: two processes must not create one database.

    A row that the runner started before its MLflow run existed waits here, too. MLflow would join
    that run through an environment variable. Joining here works under more conditions and is
    restricted to one thread.
    """
    with _state.lock:
        open_run = of_process()
        if open_run is None:
            server, _state.server = _state.server, None  # `prepare` makes a client
            try:
                if server is not None:
                    server.prepare(tracking_uri)
            finally:
                _state.server = server
            return
        mlflow = open_run.backend.mlflow
        if mlflow.is_pending:
            if tracking_uri == os.environ.get(MLFLOW_PENDING_VARIABLE):
                mlflow.find_run_id()
                os.environ.pop(MLFLOW_PENDING_VARIABLE, None)
                os.environ.pop(RUN_VARIABLE, None)
        elif mlflow.run_id is not None and mlflow.run_id == os.environ.get(RUN_VARIABLE):
            del os.environ[RUN_VARIABLE]
        elif open_run.backend.has_collector and tracking_uri == open_run.target.home.tracking_uri(
            warn=warn_once
        ):
            mlflow.find_run_id()


def _enclosing() -> OpenRun | None:
    """Return the open run to which MLflow runs opened now belong: a block's or the row's."""
    open_run = of_process()
    while open_run is not None and any(
        known.open_run is open_run and known.ends_run for known in _state.followed.values()
    ):
        open_run = open_run.enclosing
    return None if open_run is None or not open_run.backend.recorded else open_run


def _join(client: Any, tags: Mapping[str, str]) -> Any:
    """Return the existing MLflow run to use instead of a new one; None to let MLflow create one."""
    resumed = resumed_id()
    with _state.lock:
        open_run = _enclosing()
        if resumed is None:
            if open_run is None or MLFLOW_PARENT_RUN_ID in tags:
                return None
            mlflow = open_run.backend.mlflow
            name = tags.get(MLFLOW_RUN_NAME, "")
            if mlflow.is_taken or not open_run.backend.is_for(name):
                return None
            resumed = mlflow.find_run_id()
            if resumed is None:
                return None
        from mlflow.exceptions import MlflowException

        try:
            run = client.get_run(resumed)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None  # the client talks to another server
            raise
        if run.info.status != "RUNNING":
            client.update_run(resumed, "RUNNING")
        if open_run is not None and open_run.backend.mlflow.run_id == resumed:
            open_run.backend.mlflow.is_taken = True
            _state.followed.setdefault(resumed, _Followed(open_run, is_own=True))
    for name, text in tags.items():
        if name == MLFLOW_NOTE or not name.startswith(_OWN_TAGS):
            client.set_tag(resumed, name, text)
    return client.get_run(resumed)


def _opened(client: Any, run: Any, tags: Mapping[str, str]) -> None:
    """Begin the run of radt that belongs to a new MLflow run, if there should be one."""
    mlflow_id = run.info.run_id
    with _state.lock:
        above = _followed(tags.get(MLFLOW_PARENT_RUN_ID, ""))
        parent = _enclosing() if above is None else above.open_run
        if above is None and parent is not None and not parent.backend.mlflow.is_taken:
            # MLflow's server is not radt's: the first run there is this run's own.
            parent.backend.mlflow.is_taken = True
            _state.followed[mlflow_id] = _Followed(parent, is_own=False)
            return
        if parent is None and _state.server is None:
            return
        options = RunOptions(
            name=run.info.run_name,
            experiment=None
            if parent is not None
            else client.get_experiment(run.info.experiment_id).name,
            mlflow_run=mlflow_id,
            mlflow_uri=masked(client.tracking_uri),
        )
        is_fluent = MLFLOW_SOURCE_NAME in tags  # made by `mlflow.start_run` rather than by a client
        open_run = begin(parent, options, encloses=is_fluent)
        known = _Followed(open_run, open_run.backend.mlflow.run_id == mlflow_id, ends_run=True)
        open_run.backend.mlflow.is_taken = True
        _state.followed[mlflow_id] = known
        if is_fluent:
            known.before = make_current(open_run)


def _ended(mlflow_id: str, status: str) -> None:
    """End the open run of an MLflow run that the script, or MLflow at process exit, has ended."""
    known = _state.followed.get(mlflow_id)
    if known is None or not known.ends_run:
        return
    del _state.followed[mlflow_id]
    error = sys.exc_info()[1] if status != "FINISHED" else exit_of_process()
    ending = ending_of(error)
    if error is None and status != "FINISHED":
        ended = RunStatus.KILLED if status == "KILLED" else RunStatus.FAILED
        ending = ended, f"MLflow's run was ended as {status}"
    make_former(known.open_run, known.before)
    finish(known.open_run, *ending)


# Logged values --------------------------------------------------------------------------------


def _copy(
    mlflow_id: str,
    values: Iterable[Value] = (),
    params: Mapping[str, Any] | None = None,
    tags: Mapping[str, Any] | None = None,
) -> None:
    followed = _followed(mlflow_id)
    if followed is None:
        return
    journal = followed.open_run.backend.journal
    if not isinstance(journal, JournalWriter):
        return
    for value in values:
        if not value.name.startswith(_OWN_METRICS):
            name = checked_name(value.name)
            if followed.is_own:
                name = JournalSeries(SOFTWARE, name, "", Scope.RUN, method=THROUGH_MLFLOW).name
            at_ns = _monotonic_ns(value.time_ms, followed)
            journal.sample(name, to_number(value.value), to_step(value.step), at_ns)
    if params:
        texts = {name: str(value) for name, value in params.items()}
        journal.say(EventKind.PARAMS, values=texts)
    if tags:
        texts = {n: str(value) for n, value in tags.items() if not n.startswith(_OWN_TAGS)}
        if texts:
            journal.say(EventKind.TAGS, values=texts)


def _monotonic_ns(time_ms: int, followed: _Followed) -> int:
    """Return MLflow's time on the monotonic clock, exact unless the wall clock was set."""
    now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
    ago_ns = wall_ns - time_ms * 1_000_000
    exact_ns = time_ms * 1_000_000 - followed.clock.offset_ns
    at_ns = exact_ns if abs(now_ns - ago_ns - exact_ns) < _CLOCK_SLACK_NS else now_ns - ago_ns
    return min(max(at_ns, followed.since_ns), now_ns)


# The wrapped methods --------------------------------------------------------------------------

#: What a warning says did not work.
_FOLLOWING = "copying what the script logs to MLflow, which has it,"

#: Arguments of a call by name, with defaults. ``before`` may change them.
Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Follower:
    """Code to run before and after a method of MLflow's client.

    Args:
        parameters: Names of the method's parameters that are used here.
        after: Called after it, with its arguments and its result.
        before: Called before it; a result other than None replaces the call.
    """

    parameters: tuple[str, ...]
    after: Callable[[Arguments, Any], None] = lambda given, result: None  # noqa: ARG005
    before: Callable[[Arguments], Any] = lambda given: None  # noqa: ARG005


def _wrapped(original: Callable[..., Any], follower: Follower) -> Callable[..., Any]:
    expected = signature(original)

    @wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        call = expected.bind(*args, **kwargs)
        call.apply_defaults()
        result = guarded(_FOLLOWING, lambda: follower.before(call.arguments))
        if result is None:
            result = original(*call.args, **call.kwargs)
            guarded(_FOLLOWING, lambda: follower.after(call.arguments, result))
        return result

    vars(method)["followed_by_radt"] = True
    return method


def _tags(given: Arguments) -> Mapping[str, str]:
    return given["tags"] or {}


def _stamp(given: Arguments) -> None:
    """Make MLflow and the journal record the same time."""
    if given["timestamp"] is None:
        given["timestamp"] = time.time_ns() // 1_000_000


def _metric_logged(given: Arguments, result: Any) -> None:  # noqa: ARG001
    value = Value(given["key"], given["value"], given["timestamp"], given["step"] or 0)
    _copy(given["run_id"], values=[value])


def _batch_logged(given: Arguments, result: Any) -> None:  # noqa: ARG001
    _copy(
        given["run_id"],
        [Value(one.key, one.value, one.timestamp, one.step) for one in given["metrics"]],
        {one.key: one.value for one in given["params"]},
        {one.key: one.value for one in given["tags"]},
    )


#: Methods of ``mlflow.tracking._tracking_service.client.TrackingServiceClient``.
FOLLOWED: Mapping[str, Follower] = {
    "__init__": Follower(
        ("tracking_uri",), before=lambda given: _wait_for_run(given["tracking_uri"])
    ),
    "create_run": Follower(
        ("tags",),
        before=lambda given: _join(given["self"], _tags(given)),
        after=lambda given, run: _opened(given["self"], run, _tags(given)),
    ),
    "log_metric": Follower(
        ("run_id", "key", "value", "timestamp", "step"), _metric_logged, before=_stamp
    ),
    "log_batch": Follower(("run_id", "metrics", "params", "tags"), _batch_logged),
    "log_param": Follower(
        ("run_id", "key", "value"),
        lambda given, _: _copy(given["run_id"], params={given["key"]: given["value"]}),
    ),
    "set_tag": Follower(
        ("run_id", "key", "value"),
        lambda given, _: _copy(given["run_id"], tags={given["key"]: given["value"]}),
    ),
    "set_terminated": Follower(
        ("run_id", "status"),
        lambda given, _: _ended(given["run_id"], str(given["status"] or "FINISHED")),
    ),
}
