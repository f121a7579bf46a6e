"""Slurm as an engine, with its own daemons: what is asked of it, and what it answers."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Collection, Iterator
from itertools import cycle
from pathlib import Path

import pytest

from radt.cluster import slurm as engine_module
from radt.cluster.engine import ArrayRequest, JobEnd, JobId, JobState, Phase, Shape
from radt.cluster.slurm import Slurm as Engine
from radt.cluster.slurm import parse_past, parse_queue, waits_for
from radt.errors import ClusterError, EngineAwayError, SubmitLimitError
from tests.support.servers import slurm_cluster
from tests.support.slurm import Slurm
from tests.support.waiting import wait_until

#: Runs until the file ``go`` is there; ``asked`` says that it was asked to end.
_STEP = """\
#!/bin/sh
cd {folder}
trap 'touch asked.$SLURM_ARRAY_TASK_ID; exit 7' TERM
env >env.$SLURM_ARRAY_TASK_ID.${{SLURM_RESTART_COUNT:-0}}
touch started.$SLURM_ARRAY_TASK_ID.${{SLURM_RESTART_COUNT:-0}}
until [ -e go ]; do sleep 0.05; done
"""
#: As the script of a job: what it forwards and its exit code are those of its step.
_SCRIPT = """\
#!/bin/sh
trap : TERM
srun --ntasks=1 sh {folder}/step.sh &
wait $! || wait $!
"""


class Jobs:
    """Requests of jobs that run until they are let go, and what they have left in their folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "step.sh").write_text(_STEP.format(folder=folder))
        self.go = folder / "go"
        self.intents = [f"radt:{uuid.uuid4()}:{number}" for number in range(2)]

    def request(
        self,
        indices: Collection[int] = range(1),
        shape: Shape | None = None,
        script: str = "",
        array: int = 0,
        **others: object,
    ) -> ArrayRequest:
        return ArrayRequest(
            name="radt test",
            intent=self.intents[array],
            shape=shape or Shape(gpus=1, cpus=1),
            indices=indices,
            script=script or _SCRIPT.format(folder=self.folder),
            output=str(self.folder / "output.%a"),
            **others,  # type: ignore[arg-type]
        )

    def wait_started(self, *indices: int, restarts: int = 0) -> None:
        for index in indices:
            started = self.folder / f"started.{index}.{restarts}"
            wait_until(started.exists, f"the start of job {index}")

    def environ(self, index: int, restarts: int = 0) -> dict[str, str]:
        lines = (self.folder / f"env.{index}.{restarts}").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Slurm]:
    with slurm_cluster(2, {"a100": 2}) as slurm:
        yield slurm


@pytest.fixture
def cluster(shared_cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """Two idle nodes with two GPUs each."""
    monkeypatch.setenv("SLURM_CONF", shared_cluster.environ["SLURM_CONF"])
    yield shared_cluster
    shared_cluster.run("scancel", f"--user={os.getuid()}")
    shared_cluster.wait_idle()


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def wait_phase(engine: Engine, job: JobId, phase: Phase) -> JobState:
    """Return the state of a job as soon as it is in a phase."""

    def is_there() -> bool:
        state = engine.states([job.array]).get(job)
        return state is not None and state.phase is phase

    wait_until(is_there, f"{job} {phase}: {engine.states([job.array])}")
    return engine.states([job.array])[job]


# With a cluster that works ------------------------------------------------------------------------


def test_jobs_are_submitted_found_followed_and_end(cluster: Slurm, jobs: Jobs) -> None:
    engine = Engine()
    assert engine.states(["999999"]) == {} and engine.find(jobs.intents[0]) is None
    array = engine.submit(jobs.request([*range(4), 7]))
    other = engine.submit(jobs.request(array=1))
    assert engine.find(jobs.intents[0]) == array and engine.find(jobs.intents[1]) == other
    jobs.wait_started(*range(4))
    states = engine.states([array])
    assert [str(job) for job in sorted(states)] == [f"{array}_{index}" for index in (0, 1, 2, 3, 7)]
    assert {states[JobId(array, index)].nodes for index in range(4)} == {"node1", "node2"}
    assert {states[JobId(array, index)].phase for index in range(4)} == {Phase.RUNNING}
    wait_until(
        lambda: engine.states([array])[JobId(array, 7)].reason in ("Resources", "Priority"),
        "why the last one waits",
    )
    assert engine.states([array])[JobId(array, 7)].phase is Phase.QUEUED
    jobs.go.touch()
    for index in (0, 1, 2, 3, 7):
        ended = wait_phase(engine, JobId(array, index), Phase.ENDED)
        assert ended.end is JobEnd.COMPLETED and ended.nodes.startswith("node")
    assert {job.array for job in engine.states([array, other, "999999"])} == {array, other}
    assert engine.find(jobs.intents[0]) == array, "also when it has ended"
    assert engine.past([JobId(array, 0)]) == {}, "there is no accounting"


def test_each_job_has_its_own_gpus_of_its_node(cluster: Slurm, jobs: Jobs) -> None:
    engine = Engine()
    engine.submit(jobs.request(range(4), Shape(gpus=1, gpu_type="a100", cpus=2)))
    jobs.wait_started(*range(4))
    environs = [jobs.environ(index) for index in range(4)]
    places = {(env["SLURMD_NODENAME"], env["SLURM_JOB_GPUS"]) for env in environs}
    assert places == {(node, gpu) for node in ("node1", "node2") for gpu in "01"}
    assert all(env["CUDA_VISIBLE_DEVICES"] == env["SLURM_JOB_GPUS"] for env in environs)
    assert {env["SLURM_CPUS_PER_TASK"] for env in environs} == {"2"}


def test_a_job_gets_what_its_shape_says(cluster: Slurm, jobs: Jobs) -> None:
    engine = Engine()
    shape = Shape(
        gpus=2,
        gpu_type="gpu:a100",
        cpus=3,
        memory_bytes=3 << 30,
        time_s=5400.0,
        partition="scavenge",
        exclusive=True,
    )
    array = engine.submit(jobs.request([3], shape, options=("--nice=5",)))
    jobs.wait_started(3)
    shown = cluster.run("scontrol", "show", "job", f"{array}_3")
    for expected in (
        *(
            "JobName=radt test",
            f"Comment={jobs.intents[0]}",
            "Partition=scavenge",
            "Requeue=1",
            "Nice=5",
        ),
        *("TimeLimit=01:30:00", "MinMemoryNode=3G", "CPUs/Task=3", "OverSubscribe=NO"),
        "TresPerNode=gres:gpu:a100:2",
    ):
        assert expected in shown, shown


def test_check_says_when_without_submitting(cluster: Slurm, jobs: Jobs) -> None:
    engine = Engine()
    assert engine.check(jobs.request()).startswith("to start at ")
    with pytest.raises(ClusterError, match=r"Slurm refuses: .*not available.*sinfo"):
        engine.check(jobs.request(shape=Shape(gpus=3)))
    with pytest.raises(ClusterError, match=r"(?i)partition.*`sinfo`"):
        engine.submit(jobs.request(shape=Shape(partition="none")))
    with pytest.raises(ClusterError, match=r"(?i)invalid generic resource|not available"):
        engine.check(jobs.request(shape=Shape(gpus=1, gpu_type="h100")))
    assert engine.find(jobs.intents[0]) is None
    assert engine.max_array_size == 20001


def test_a_job_runs_on_the_node_that_it_has_to(cluster: Slurm, jobs: Jobs) -> None:
    engine = Engine()
    assert engine.pick(jobs.request()) in cluster.nodes
    with pytest.raises(ClusterError, match=r"Slurm refuses: .*not available"):
        engine.pick(jobs.request(shape=Shape(gpus=3)))
    assert engine.pick(jobs.request(shape=Shape(cpus=1, node="node2"))) == "node2"
    array = engine.submit(jobs.request(range(2), shape=Shape(cpus=1, node="node2")))
    jobs.wait_started(0, 1)
    assert {state.nodes for state in engine.states([array]).values()} == {"node2"}


def test_cancelled_jobs_are_asked_first(cluster: Slurm, jobs: Jobs) -> None:
    engine = Engine()
    array = engine.submit(jobs.request(range(3), Shape(gpus=2)))
    jobs.wait_started(0, 1)
    engine.cancel([JobId(array, 2)])
    assert wait_phase(engine, JobId(array, 2), Phase.ENDED).end is JobEnd.CANCELLED
    engine.cancel([JobId(array, 0)])
    assert wait_phase(engine, JobId(array, 0), Phase.ENDED).end is JobEnd.CANCELLED
    assert (jobs.folder / "asked.0").exists()
    assert engine.states([array])[JobId(array, 1)].phase is Phase.RUNNING
    engine.cancel([JobId(array, 1)], now=True)
    ended = wait_phase(engine, JobId(array, 1), Phase.ENDED)
    assert ended.end in (JobEnd.CANCELLED, JobEnd.FAILED), "the script may be first to end"
    assert not (jobs.folder / "asked.1").exists()
    engine.cancel([JobId(array, index) for index in range(3)])  # nothing happens any more
    engine.cancel([JobId("999999", 0)], now=True)
    wait_until(lambda: not cluster.job_processes("node1"), "the end of all processes")


def test_held_jobs_wait_for_their_release(cluster: Slurm, jobs: Jobs) -> None:
    engine = Engine()
    array = engine.submit(jobs.request(range(6), Shape(gpus=2)))
    jobs.wait_started(0, 1)
    every = [JobId(array, index) for index in range(6)]
    engine.hold(every)
    states = engine.states([array])
    assert [states[job].phase for job in every] == [Phase.RUNNING] * 2 + [Phase.HELD] * 4
    engine.release([JobId(array, 3), JobId(array, 4)])
    states = engine.states([array])
    assert [states[job].phase for job in every[2:]] == [
        *(Phase.HELD, Phase.QUEUED, Phase.QUEUED, Phase.HELD)
    ]
    jobs.go.touch()
    jobs.wait_started(3, 4)
    assert engine.states([array])[JobId(array, 2)].phase is Phase.HELD


def test_the_submitters_own_job_is_not_inherited(
    cluster: Slurm, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "100")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "99")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    engine = Engine()
    array = engine.submit(jobs.request(shape=Shape(cpus=1)))
    jobs.wait_started(0)
    assert engine.states([array])[JobId(array, 0)].phase is Phase.RUNNING
    environ = jobs.environ(0)
    assert "SLURM_MEM_PER_NODE" not in environ and "CUDA_VISIBLE_DEVICES" not in environ


# With faults --------------------------------------------------------------------------------------


def test_a_job_starts_again_when_its_node_has_died(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slurm_cluster(2, 1) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
        engine = Engine()
        array = engine.submit(jobs.request())
        jobs.wait_started(0)
        node = engine.states([array])[JobId(array, 0)].nodes
        assert cluster.job_processes(node)
        cluster.kill_node(node)
        assert not cluster.processes(node)
        cluster.declare_down(node)
        waiting = wait_phase(engine, JobId(array, 0), Phase.QUEUED)
        assert waiting.starts and waiting.end is None
        cluster.start_now(f"{array}_0")
        jobs.wait_started(0, restarts=1)
        assert engine.states([array])[JobId(array, 0)].nodes not in ("", node)
        jobs.go.touch()
        assert wait_phase(engine, JobId(array, 0), Phase.ENDED).end is JobEnd.COMPLETED


def test_a_controller_that_is_away_is_no_empty_queue(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slurm_cluster(1, 2) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
        # Commands try for so many seconds.
        text = (cluster.folder / "slurm.conf").read_text()
        hasty = cluster.folder / "hasty.conf"
        hasty.write_text(re.sub("MessageTimeout=.*", "MessageTimeout=2", text))
        engine = Engine()
        array = engine.submit(jobs.request(range(3)))
        jobs.wait_started(0, 1)
        before = {job: state.phase for job, state in engine.states([array]).items()}
        cluster.stop_controller()
        with monkeypatch.context() as away:
            away.setenv("SLURM_CONF", str(hasty))
            for question in (
                lambda: engine.states([array]),
                lambda: engine.submit(jobs.request(array=1)),
                lambda: engine.cancel([JobId(array, 0)]),
            ):
                with pytest.raises(EngineAwayError, match="does not answer"):
                    question()
        cluster.start_controller()
        assert engine.find(jobs.intents[0]) == array and engine.find(jobs.intents[1]) is None
        assert {job: state.phase for job, state in engine.states([array]).items()} == before
        cluster.stop_munged()
        with pytest.raises(EngineAwayError):
            engine.states([array])


def test_a_full_queue_and_jobs_that_ended_long_ago(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"MaxJobCount": "4", "MinJobAge": "2", "MaxArraySize": "11"}
    with slurm_cluster(1, 2, settings=settings) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
        engine = Engine()
        assert engine.max_array_size == 11
        with pytest.raises(ClusterError, match=r"(?i)array"):
            engine.submit(jobs.request([11]))
        array = engine.submit(jobs.request(range(3)))
        with monkeypatch.context() as hasty, pytest.raises(SubmitLimitError):
            hasty.setattr(engine_module, "TIMEOUT_S", 5.0)  # sbatch would try for longer
            engine.submit(jobs.request(range(3), array=1))
        assert engine.find(jobs.intents[1]) is None
        jobs.go.touch()
        wait_until(lambda: not engine.states([array]), "the array to be forgotten")
        assert engine.find(jobs.intents[0]) is None
        assert [job["JobState"] for job in cluster.ended()] == ["COMPLETED"] * 3


# What sites and versions say that these daemons do not --------------------------------------------


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH beside the system's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/nowhere")
    return folder


def put(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_machine_without_slurm(fake: Path, jobs: Jobs) -> None:
    for ask in (lambda: Engine().submit(jobs.request()), lambda: Engine().states(["1"])):
        with pytest.raises(ClusterError, match=r"Slurm is not here.*PATH.*login node"):
            ask()


_POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit "
    "limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    ("words", "kind", "cause"),
    [
        (
            f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{_POLICY}",
            *(SubmitLimitError, "QOSMaxSubmitJobPerUserLimit"),
        ),
        ("sbatch: error: AssocMaxSubmitJobLimit", SubmitLimitError, "AssocMaxSubmitJobLimit"),
        (
            f"sbatch: error: QOSMaxCpuPerUserLimit\n{_POLICY}",
            *(ClusterError, "QOSMaxCpuPerUserLimit: Job violates accounting"),
        ),
        (
            "sbatch: error: Please give an account\nsbatch: error: Batch job submission failed: "
            "Unspecified error",
            *(
                ClusterError,
                "Slurm refuses: Please give an account: .*Unspecified error.*radt.toml",
            ),
        ),
        (
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
            *(EngineAwayError, "does not answer.*Socket timed out"),
        ),
        (
            'sbatch: unrecognized option \\"--nonsense\\"\nTry sbatch --help for more information',
            *(ClusterError, r'option "--nonsense"\. `sbatch --help` lists'),
        ),
        (
            "sbatch: fatal: Could not establish a configuration source",
            *(ClusterError, "no configuration here"),
        ),
    ],
)
def test_refusals_in_slurms_words(
    fake: Path, jobs: Jobs, words: str, kind: type[ClusterError], cause: str
) -> None:
    put(fake / "sbatch", f'cat >/dev/null\necho "{words}" >&2\nexit 1')
    put(fake / "squeue", "exit 0")
    for name in ("cat",):
        (fake / name).symlink_to(f"/bin/{name}")
    with pytest.raises(ClusterError, match=cause) as raised:
        Engine().submit(jobs.request())
    assert type(raised.value) is kind


def test_a_command_that_hangs_is_no_answer(
    fake: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake / "sleep").symlink_to("/bin/sleep")
    put(fake / "squeue", "exec sleep 100")
    with pytest.raises(EngineAwayError, match=r"squeue took more than 0\.2 s"):
        Engine(patience_s=0.2).states(["1"])


def test_a_missing_configuration_is_said_before_slurm_gives_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    with pytest.raises(ClusterError, match=r"no configuration here.*slurm\.conf.*SLURM_CONF"):
        Engine(patience_s=3.0).states(["1"])  # squeue itself waits for a minute


def test_accounting_is_asked_where_it_is_kept(fake: Path) -> None:
    put(fake / "scontrol", "echo 'AccountingStorageType   = accounting_storage/slurmdbd'")
    put(
        fake / "sacct",
        "echo '12_1|COMPLETED|gpu-01'\necho '12_2|CANCELLED by 1000|None assigned'\n"
        "echo '12_4|FAILED|gpu-02'",
    )
    jobs = [JobId("12", index) for index in (1, 2, 3)]
    assert Engine().past(jobs) == {
        jobs[0]: JobState(Phase.ENDED, nodes="gpu-01", end=JobEnd.COMPLETED),
        jobs[1]: JobState(Phase.ENDED, end=JobEnd.CANCELLED),
    }


def test_states_of_all_versions() -> None:
    lines = {
        "PENDING||2026-11-25T21:00:00|Resources": JobState(
            Phase.QUEUED, "Resources", starts="2026-11-25T21:00:00"
        ),
        "PENDING||N/A|JobHeldUser": JobState(Phase.HELD, "JobHeldUser"),
        "PENDING||N/A|launch failed requeued held": JobState(
            Phase.HELD, "launch failed requeued held"
        ),
        "REQUEUE_HOLD||N/A|None": JobState(Phase.HELD),
        "RUNNING|gpu-[07-08]|x|None": JobState(Phase.RUNNING, nodes="gpu-[07-08]"),
        "COMPLETING|gpu-07|x|None": JobState(Phase.RUNNING, "Completing", "gpu-07"),
        "LEVITATING|gpu-07|x|None": JobState(Phase.RUNNING, "Levitating", "gpu-07"),
        "NODE_FAIL|gpu-07|x|a|b": JobState(Phase.ENDED, "a|b", "gpu-07", JobEnd.NODE_FAIL),
        "OUT_OF_MEMORY|gpu-07|x|OutOfMemory": JobState(
            Phase.ENDED, "OutOfMemory", "gpu-07", JobEnd.OUT_OF_MEMORY
        ),
    }
    comments = {"radt:20261125:0:1": "radt:20261125:0:1", "(null)": "", "the site's own": None}
    text = "".join(
        f"12|{index}|{'|'.join([*fields[:3], comment, *fields[3:]])}\n"
        for index, (line, comment) in enumerate(zip(lines, cycle(comments), strict=False))
        if (fields := line.split("|"))
    )
    parsed = parse_queue("slurm_load_jobs: warning\n" + text)
    assert [parsed[JobId("12", index)] for index in range(len(lines))] == list(lines.values())
    assert [state.intent for state in parsed.values()][:3] == list(comments.values())
    assert parse_past("12_[4-9]|PENDING|\n12_1|TIMEOUT|n1\n") == {
        JobId("12", 1): JobState(Phase.ENDED, nodes="n1", end=JobEnd.TIMEOUT)
    }


def test_jobs_and_indices_as_slurm_writes_them() -> None:
    jobs = [JobId("9", 1), *(JobId("10", index) for index in range(0, 3000, 2))]
    words = engine_module._expressions(jobs)
    assert words[0] == "9_[1]" and words[1].startswith("10_[0,2,4") and len(words) == 3
    assert engine_module._notice_s(None) == 120
    assert [engine_module._notice_s(seconds) for seconds in (7200, 240, 1)] == [120, 60, 1]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "a node with room for it"),
        ("Priority", "jobs before it in the queue"),
        ("QOSMaxJobsPerUserLimit", "a limit is reached"),
        ("ReqNodeNotAvail, UnavailableNodes:node1", "down, drained or reserved"),
        ("SomethingNew", "–"),
    ],
)
def test_what_a_job_waits_for_is_said_in_words(reason: str, words: str) -> None:
    assert words in waits_for(reason)
