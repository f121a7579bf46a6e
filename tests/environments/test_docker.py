"""Containers, through a stand-in for docker that runs them here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from radt.environments import docker as docker_module
from radt.environments.build import BuiltEnvironment, Launch
from radt.environments.cache import HOOK, importable_folder, package_folder
from radt.environments.docker import ContainerIdentity, Mount, Mounts
from radt.environments.spec import ProgramEnd
from radt.errors import EnvironmentBuildError
from radt.journal.reader import JournalReader
from tests.support.bench import alive, wait_until
from tests.support.environments import Tools, Workbench
from tests.support.journal import Found
from tests.support.users import NOBODY, as_ordinary_user

#: An interpreter without packages, as images have them.
PYTHON = str(Path(sys.executable).resolve())


def image(number: int, **more: object) -> dict[str, object]:
    return {
        "id": f"sha256:{number:064}",
        "env": [f"PATH={Path(PYTHON).parent}:/usr/bin:/bin"],
    } | more


@dataclass
class Docker:
    """The stand-in's daemon, and what its containers were."""

    tools: Tools
    state: dict[str, Any] = field(default_factory=lambda: {"images": {}, "registry": {}})

    def have(self, name: str, found: dict[str, object]) -> None:
        self.state["images"][name] = found
        self.save()

    def save(self, **changes: object) -> None:
        self.state |= changes
        (self.tools.state / "docker.json").write_text(json.dumps(self.state))

    def asked(self, verb: str) -> list[str]:
        return [call for call in self.tools.calls() if call.startswith(verb)]

    def shown(self, ending: str = "ended") -> dict[str, Any]:
        file = self.tools.state / "containers" / f"radt-r1.{ending}"
        found = json.loads(file.read_text())
        assert isinstance(found, dict)
        return found


@pytest.fixture
def docker(tools: Tools) -> Iterator[Docker]:
    tools.install("docker")
    made = Docker(tools)
    made.have("python:3.12", image(1))
    yield made
    for file in (tools.state / "containers").glob("*.json"):  # of a test that failed
        os.killpg(json.loads(file.read_text())["pid"], signal.SIGKILL)


def start(built: BuiltEnvironment, launch: Launch) -> subprocess.Popen[str]:
    built.prepare(launch, print)
    return subprocess.Popen(
        built.command(launch),
        env={**launch.variables, **built.variables(launch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(built: BuiltEnvironment, launch: Launch, code: int = 0) -> str:
    process = start(built, launch)
    output, _ = process.communicate()
    assert process.returncode == code, output
    return output.strip()


def test_a_script_in_a_container_logs_into_the_run(bench: Workbench, docker: Docker) -> None:
    script = bench.write(
        "train.py",
        "import radt, sys\n"
        "with radt.Run() as run:\n"
        "    run.log_metric('loss', 0.5, 3)\n"
        "print(radt.__file__, sys.argv[1:])\n",
    )
    launch = bench.launch(str(script), "--name", "two words")
    output = run(bench.build("docker:python:3.12"), launch)
    assert output.endswith("['--name', 'two words']")
    assert "/root-radt-r1/opt/radt/radt/__init__.py" in output
    found = Found(JournalReader(launch.run_dir / "journal", {}))
    found.read(final=True)
    assert found.values("loss") == [0.5]
    assert docker.shown()["labels"] == {"radt.run": "r1", "radt.home": str(launch.home)}


def test_all_of_radt_can_be_imported_inside(bench: Workbench, docker: Docker) -> None:
    parts = [path.name for path in package_folder().iterdir() if (path / "__init__.py").exists()]
    script = bench.write(
        "look.py", f"import importlib.util as i\nfor p in {parts}: print(i.find_spec('radt.' + p))"
    )
    output = run(bench.build("docker:python:3.12"), bench.launch(str(script)))
    assert output.count("ModuleSpec(") == len(parts)
    assert "radt.listeners" in output


def test_an_image_is_pulled_if_it_is_not_there_and_looked_at_once(
    bench: Workbench, docker: Docker
) -> None:
    docker.save(registry={"new:1": image(2)})
    first = bench.build("docker:new:1")
    assert bench.build("docker:new:1") == first
    assert docker.asked("pull") == ["pull new:1"]
    assert len(docker.asked("run")) == 1
    assert "Pull complete" in bench.log.read_text()
    assert any(text.startswith("pulled new:1 in ") for text in bench.said)
    assert first.packages.startswith("python==3")


def test_a_tag_that_has_moved_is_looked_at_again(bench: Workbench, docker: Docker) -> None:
    bench.build("docker:python:3.12")
    docker.have("python:3.12", image(3))
    built = bench.build("docker:python:3.12")
    assert len(docker.asked("run")) == 2
    assert f"sha256:{3:064}" in built.command(bench.launch("train.py"))


def test_what_an_image_lacks_cannot_be_pulled(bench: Workbench, docker: Docker) -> None:
    with pytest.raises(
        EnvironmentBuildError, match=r"(?s)nothing:1 could not be.*manifest"
    ) as caught:
        bench.build("docker:nothing:1")
    assert "docker login" in (caught.value.remedy or "")
    assert str(bench.log) in (caught.value.remedy or "")


def test_pulling_can_be_cancelled(bench: Workbench, docker: Docker) -> None:
    docker.save(registry={"new:1": image(2)})
    (docker.tools.state / "hold").touch()
    with pytest.raises(EnvironmentBuildError, match="cancelled"):
        bench.build("docker:new:1", cancelled=lambda: bool(docker.asked("pull")))


@pytest.mark.parametrize(
    ("trouble", "remedy"),
    [
        ("permission denied while trying to connect to the docker API", "usermod -aG docker"),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock", "systemctl start"),
    ],
)
def test_a_docker_that_does_not_answer_is_explained(
    bench: Workbench, docker: Docker, trouble: str, remedy: str
) -> None:
    docker.save(trouble=trouble)
    with pytest.raises(EnvironmentBuildError, match=trouble[:20]) as caught:
        bench.build("docker:python:3.12")
    assert remedy in (caught.value.remedy or "")


def test_without_docker_it_is_said_how_to_get_it(bench: Workbench, tools: Tools) -> None:
    with pytest.raises(EnvironmentBuildError, match=r"docs\.docker\.com/engine/install"):
        bench.build("docker:python:3.12")


def test_secrets_are_not_in_the_process_list(bench: Workbench, docker: Docker) -> None:
    script = bench.write("train.py", "import os; print(os.environ['WANDB_API_KEY'])")
    launch = bench.launch(str(script))
    launch = bench.launch(
        str(script), variables={**launch.variables, "WANDB_API_KEY": "hush", "OTHER": "hush"}
    )
    assert "hush" not in repr(launch)
    assert run(bench.build("docker:python:3.12"), launch) == "hush"
    assert "hush" not in json.dumps(docker.shown()["arguments"])
    assert "OTHER" not in docker.shown()["env"]


def test_variables_of_the_machines_own_software_stay_outside(
    bench: Workbench, docker: Docker
) -> None:
    cache = bench.write("../hf-cache/model", "").parent
    data = bench.write("../data/train.csv", "").parent
    variables = {
        **bench.launch().variables,
        "LD_LIBRARY_PATH": "/own/lib",
        "CONDA_PREFIX": "/own",
        "HF_HOME": str(cache.resolve()),
        "TORCH_HOME": str(data.resolve()),
        "OMP_NUM_THREADS": "4",
        "RADT_RUNTIME_DIR": os.environ["RADT_RUNTIME_DIR"],
    }
    launch = bench.launch("-c", "pass", variables=variables)
    run(bench.build(bench.spec("docker:python:3.12", data)), launch)
    env = docker.shown()["env"]
    assert env["OMP_NUM_THREADS"] == "4"
    assert env["TORCH_HOME"] == str(data.resolve())
    assert env["RADT_RUN_DIR"] == str(launch.run_dir)
    assert env["HOME"] == "/tmp"
    assert not {"LD_LIBRARY_PATH", "CONDA_PREFIX", "HF_HOME", "RADT_RUNTIME_DIR"} & set(env)


def test_variables_of_terraform_stay_outside(bench: Workbench, docker: Docker) -> None:
    of_tensorflow = (
        "TF_CPP_MIN_LOG_LEVEL",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "TF_CONFIG",
        "TF_XLA_FLAGS",
    )
    others = ("TF_VAR_password", "TF_TOKEN_app_terraform_io", "TF_ENCRYPTION", "TF_CLI_ARGS")
    variables = bench.launch().variables | dict.fromkeys((*of_tensorflow, *others), "1")
    run(bench.build("docker:python:3.12"), bench.launch("-c", "pass", variables=variables))
    passed = {name for name in docker.shown()["env"] if name.startswith("TF_")}
    assert passed == set(of_tensorflow)


def test_a_path_that_this_user_may_not_look_up_stays_outside(bench: Workbench) -> None:
    closed = bench.write("../other/hf/model", "").parents[1].resolve()
    closed.chmod(0o000)
    variables = {"HF_HOME": str(closed / "hf"), "HF_TOKEN": "/" + "x" * 5000, "TZ": "UTC"}
    launch = bench.launch(variables=variables)
    try:
        with as_ordinary_user():
            assert docker_module.passed_variables(launch, Mounts()) == ["HF_TOKEN", "TZ"]
    finally:
        closed.chmod(0o700)


def test_the_images_search_path_stays(bench: Workbench, docker: Docker) -> None:
    docker.have("own:1", image(4, env=[*image(4)["env"], "PYTHONPATH=/app"]))  # type: ignore[misc]
    command = bench.build("docker:own:1").command(bench.launch("train.py"))
    assert "PYTHONPATH=/opt/radt:/app" in command


def test_gpus_are_given_by_uuid(bench: Workbench, docker: Docker) -> None:
    built = bench.build("docker:python:3.12")
    uuids = ("GPU-5c89", "MIG-c6d4")
    variables = {**bench.launch().variables, "CUDA_VISIBLE_DEVICES": "3,4"}
    run(built, bench.launch("-c", "pass", gpu_uuids=uuids, variables=variables))
    env = docker.shown()["env"]
    assert env["NVIDIA_VISIBLE_DEVICES"] == "GPU-5c89,MIG-c6d4"
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-5c89,MIG-c6d4"


def test_gpus_by_number_are_counted_anew_inside(bench: Workbench, docker: Docker) -> None:
    built = bench.build("docker:python:3.12")
    variables = {**bench.launch().variables, "CUDA_VISIBLE_DEVICES": "3,4"}
    run(built, bench.launch("-c", "pass", gpu_uuids=("3", "4"), variables=variables))
    env = docker.shown()["env"]
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_VISIBLE_DEVICES"]) == ("3,4", "0,1")


def test_without_gpus_a_container_gets_none(bench: Workbench, docker: Docker) -> None:
    variables = {**bench.launch().variables, "CUDA_VISIBLE_DEVICES": ""}
    run(bench.build("docker:python:3.12"), bench.launch("-c", "pass", variables=variables))
    shown = docker.shown()
    assert shown["env"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert shown["env"]["CUDA_VISIBLE_DEVICES"] == ""
    assert "--gpus" not in shown["options"]
    assert "--cpuset-cpus" not in shown["options"]


def test_cpus_and_namespaces_are_as_asked(bench: Workbench, docker: Docker) -> None:
    run(bench.build("docker:python:3.12"), bench.launch("-c", "pass", cpus=frozenset({6, 0, 1})))
    options = docker.shown()["options"]
    assert options["--cpuset-cpus"] == ["0,1,6"]
    assert [options[name] for name in ("--pid", "--ipc", "--network")] == [["host"]] * 3
    assert "--userns" not in options


def test_the_memory_cell_is_the_containers_limit(bench: Workbench, docker: Docker) -> None:
    run(bench.build("docker:python:3.12"), bench.launch("-c", "pass", memory_bytes=64 << 20))
    options = docker.shown()["options"]
    assert options["--memory"] == options["--memory-swap"] == [str(64 << 20)]


def test_moved_user_ids_are_put_back(bench: Workbench, docker: Docker) -> None:
    docker.save(remapped=True)
    run(bench.build("docker:python:3.12"), bench.launch("-c", "pass"))
    assert docker.shown()["options"]["--userns"] == ["host"]


def test_mounts_are_what_a_run_needs(bench: Workbench, docker: Docker) -> None:
    data, pipe = bench.folder.parent / "da,ta", bench.folder.parent / "mps"
    data.mkdir()
    pipe.mkdir()
    launch = bench.launch(
        "-c",
        "pass",
        variables={
            **bench.launch().variables,
            "MLFLOW_TRACKING_URI": "http://127.0.0.1:5000",
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_LOG_DIRECTORY": "/nowhere/log",
        },
    )
    run(bench.build(bench.spec("docker:python:3.12", data)), launch)
    mounts = {
        target: writable
        for target, (_, writable) in docker.shown()["mounts"].items()
        if not target.startswith("/opt/radt/")
    }
    assert mounts == {
        str(bench.folder): True,
        str(launch.run_dir): True,
        str(pipe): True,
        str(data): False,
    }


def test_a_local_mlflow_is_reachable_from_inside(bench: Workbench, docker: Docker) -> None:
    launch = bench.launch("-c", "pass")
    uri = f"sqlite:///{launch.home / 'mlflow.db'}"
    launch = bench.launch("-c", "pass", variables={**launch.variables, "MLFLOW_TRACKING_URI": uri})
    run(bench.build("docker:python:3.12"), launch)
    assert docker.shown()["mounts"][str(launch.home)] == [str(launch.home), True]
    assert docker.shown()["env"]["MLFLOW_TRACKING_URI"] == uri


def test_data_in_the_scripts_folder_is_part_of_it(bench: Workbench, docker: Docker) -> None:
    data = bench.write("data/train.csv", "").parent
    run(bench.build(bench.spec("docker:python:3.12", data)), bench.launch("-c", "pass"))
    assert str(data) not in docker.shown()["mounts"]


def test_links_lead_where_they_lead_outside(tmp_path: Path) -> None:
    real = tmp_path / "disk" / "imagenet"
    real.mkdir(parents=True)
    (tmp_path / "work").mkdir()
    inner, outer = tmp_path / "work" / "data", tmp_path / "shortcut"
    inner.symlink_to(real)
    outer.symlink_to(tmp_path / "disk")
    mounts = Mounts()
    mounts.add(tmp_path / "work", writable=True)
    mounts.add(inner)
    mounts.add(outer / "imagenet")
    assert mounts.all == [
        Mount(tmp_path / "work", tmp_path / "work", writable=True),
        Mount(real, real),  # the link inside work leads there
        Mount(real, outer / "imagenet"),
    ]


def test_data_that_are_not_there_are_named(bench: Workbench, docker: Docker) -> None:
    built = bench.build(bench.spec("docker:python:3.12", bench.folder / "missing"))
    with pytest.raises(EnvironmentBuildError, match="missing: No such file"):
        built.command(bench.launch("train.py"))


def test_the_exit_code_is_the_scripts(bench: Workbench, docker: Docker) -> None:
    run(bench.build("docker:python:3.12"), bench.launch("-c", "raise SystemExit(7)"), code=7)


def test_a_signal_that_ended_the_script_is_told_apart(bench: Workbench, docker: Docker) -> None:
    built = bench.build("docker:python:3.12")
    script = bench.write("die.py", "import os; os.kill(os.getpid(), 9)")
    launch = bench.launch(str(script))
    process = start(built, launch)
    process.communicate()
    assert built.ended(launch, process.returncode) == ProgramEnd(-signal.SIGKILL, "id-of-radt-r1")
    codes = (0, 7, 125, 128, 255)
    assert [built.ended(launch, code).code for code in codes] == [*codes]


def started(docker: Docker) -> int:
    file = docker.tools.state / "containers" / "radt-r1.json"
    wait_until(file.exists, "the container runs")
    return int(docker.shown("json")["pid"])


def test_a_signal_reaches_the_script(bench: Workbench, docker: Docker) -> None:
    script = bench.write(
        "wait.py",
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n",
    )
    process = start(bench.build("docker:python:3.12"), bench.launch(str(script)))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    started(docker)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 9


def test_a_container_whose_client_was_killed_is_found_and_removed(
    bench: Workbench, docker: Docker
) -> None:
    built = bench.build("docker:python:3.12")
    launch = bench.launch("-c", "import time; time.sleep(600)")
    process = start(built, launch)
    pid = started(docker)
    process.kill()
    process.wait()
    assert alive(pid)
    kill = built.kill_command(launch)
    assert kill is not None
    subprocess.run(kill, check=True)
    wait_until(lambda: not alive(pid), "the container is gone")


def test_an_entry_point_that_prepares_something_is_kept(bench: Workbench, docker: Docker) -> None:
    entry = bench.write("../entry.sh", 'export PREPARED=yes; exec "$@"')
    docker.have("prepared:1", image(5, entrypoint=["sh", str(entry.resolve())]))
    script = bench.write("train.py", "import os; print(os.environ['PREPARED'])")
    assert run(bench.build("docker:prepared:1"), bench.launch(str(script))) == "yes"


def test_an_entry_point_that_is_the_program_is_left_out(bench: Workbench, docker: Docker) -> None:
    docker.have("own:1", image(6, entrypoint=[PYTHON]))
    built = bench.build("docker:own:1")
    assert run(built, bench.launch("-c", "print('mine')")) == "mine"
    assert built.packages.startswith("python==3")


def test_an_image_without_python_runs_executables_only(bench: Workbench, docker: Docker) -> None:
    docker.have("bare:1", image(7, env=["PATH=/nowhere"], shell=False))
    built = bench.build("docker:bare:1")
    assert built.packages == ""
    with pytest.raises(EnvironmentBuildError, match="bare:1 has no Python"):
        built.command(bench.launch("train.py"))
    assert run(built, bench.launch("/bin/echo", "here", python=False)) == "here"


def test_an_image_that_docker_cannot_start_now_is_started_by_the_next_build(
    bench: Workbench, docker: Docker
) -> None:
    docker.save(problem="Error response from daemon: no space left on device")
    with pytest.raises(
        EnvironmentBuildError, match=r"docker could not start the image: .*no space"
    ):
        bench.build("docker:python:3.12")
    docker.save(problem="")
    built = bench.build("docker:python:3.12")
    assert run(built, bench.launch("-c", "print('here')")) == "here"


def test_an_old_python_is_pointed_out(bench: Workbench, docker: Docker) -> None:
    old = bench.write("../old/python", "#!/bin/sh\necho python==3.8.1\n")
    old.chmod(0o755)
    docker.have("old:1", image(8, env=[f"PATH={old.resolve().parent}:/usr/bin:/bin"]))
    bench.build("docker:old:1")
    assert any("3.8 is older than 3.11" in text for text in bench.said)


def test_what_an_mlproject_says_of_its_container_holds(bench: Workbench, docker: Docker) -> None:
    from radt.environments.mlproject import read_project

    shared = bench.write("../shared/x", "").parent.resolve()
    bench.write(
        "MLproject",
        f"docker_env:\n  image: python:3.12\n  volumes: ['{shared}:{shared}']\n"
        "  environment: [[COLOUR, blue], PASSED_ON]\n",
    )
    built = bench.build(read_project(bench.folder).environment)
    variables = {**bench.launch().variables, "PASSED_ON": "hush"}
    run(built, bench.launch("-c", "pass", variables=variables))
    shown = docker.shown()
    assert shown["mounts"][str(shared)] == [str(shared), True]
    assert (shown["env"]["COLOUR"], shown["env"]["PASSED_ON"]) == ("blue", "hush")
    assert "hush" not in json.dumps(shown["arguments"])


# Who the container is ----------------------------------------------------------------------------


@dataclass
class Caller:
    """Whom this process seems to run as."""

    patch: Callable[..., None]

    def be(self, uid: int, gid: int, *groups: int) -> None:
        self.patch(docker_module.os, "getuid", lambda: uid)
        self.patch(docker_module.os, "getgid", lambda: gid)
        self.patch(docker_module.os, "getgroups", lambda: list(groups))


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch) -> Caller:
    return Caller(monkeypatch.setattr)


def test_a_container_is_the_calling_user(caller: Caller, tmp_path: Path) -> None:
    caller.be(1234, 100, 100, 27, 5)
    assert ContainerIdentity.choose(tmp_path, rootless=False) == ContainerIdentity(
        1234, 100, (5, 27)
    )
    assert ContainerIdentity(1234, 100).user == "1234:100"
    assert ContainerIdentity(1234567, 100).name == "user1234567"


def test_a_container_of_root_is_who_called_sudo(caller: Caller, tmp_path: Path) -> None:
    caller.be(0, 0)
    environ = {"SUDO_UID": "1000", "SUDO_GID": "1001"}
    chosen = ContainerIdentity.choose(tmp_path, rootless=False, environ=environ)
    assert chosen == ContainerIdentity(1000, 1001)


def test_a_container_of_root_is_nobody_in_roots_own_folder(
    caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller.be(0, 0)
    owner = os.stat_result((0o40755, 0, 0, 2, 500, 501, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda self: owner)
    assert ContainerIdentity.choose(tmp_path, rootless=False, environ={}) == ContainerIdentity(
        500, 501
    )
    owner = os.stat_result((0o40755, 0, 0, 2, 0, 0, 0, 0, 0, 0))
    assert ContainerIdentity.choose(tmp_path, rootless=False, environ={}) == ContainerIdentity(
        65534, 65534
    )


def test_rootless_docker_shows_the_user_as_root(
    bench: Workbench, docker: Docker, caller: Caller
) -> None:
    caller.be(1234, 100)
    docker.save(rootless=True)
    run(bench.build("docker:python:3.12"), bench.launch("-c", "pass"))
    assert docker.shown()["user"] == "0:0"


def test_what_root_has_made_is_handed_over(
    bench: Workbench, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller.be(0, 0)
    (bench.folder.parent / "radt-data" / "runs").mkdir(parents=True, mode=0o700)
    given: dict[Path, tuple[int, int]] = {}
    monkeypatch.setattr(
        docker_module.os,
        "chown",
        lambda path, uid, gid, follow_symlinks: given.update({path: (uid, gid)}),
    )
    launch = bench.launch("train.py")
    (launch.run_dir / "output.log").touch()
    bench.folder.chmod(0o755)
    assert not (launch.run_dir.parent.stat().st_mode & 0o077)
    docker_module.hand_over(launch, ContainerIdentity(65534, 65534))
    assert set(given) == {launch.run_dir, launch.run_dir / "journal"}
    assert set(given.values()) == {(65534, 65534)}
    assert launch.run_dir.parent.stat().st_mode & 0o777 == 0o711  # to pass through, not to list
    bench.folder.chmod(0o700)
    with pytest.raises(EnvironmentBuildError, match="user 65534 cannot read"):
        docker_module.hand_over(launch, ContainerIdentity(65534, 65534))
    given.clear()
    caller.be(1234, 100)
    docker_module.hand_over(launch, ContainerIdentity(1234, 100))
    assert given == {}


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_data_folder_in_the_users_own_folder_is_the_users(bench: Workbench) -> None:
    variables = {"MLFLOW_RUN_ID": "m1"}
    launch = bench.launch("train.py", home=bench.folder / "radt-data", variables=variables)
    launch = replace(launch, run_dir=launch.home / "runs" / "r1")
    launch.run_dir.parent.mkdir(parents=True, mode=0o700)
    (launch.run_dir / "journal").mkdir(parents=True)
    (launch.home / "mlflow.db").touch(mode=0o600)
    os.chown(bench.folder, 1000, 1000)
    docker_module.hand_over(launch, ContainerIdentity(1000, 1000))
    # Relative paths, as of a mount: folders around it are not the user's to pass.
    written = "runs/r1/journal/x mlflow.db mlflow.db-wal artifacts/m1/artifacts/model"
    touch = ["touch", *written.split()]
    subprocess.run(touch, cwd=launch.home, user=1000, group=1000, extra_groups=(), check=True)


def test_where_the_containers_user_cannot_write_is_said(bench: Workbench, docker: Docker) -> None:
    built = bench.build("docker:python:3.12")
    database = bench.launch().home / "mlflow.db"
    database.touch(mode=0o400)
    database.parent.chmod(0o555)
    launch = bench.launch("train.py", variables={"MLFLOW_TRACKING_URI": f"sqlite:///{database}"})
    bench.folder.chmod(0o555)
    said: list[str] = []
    built.prepare(launch, said.append)
    (text,) = said
    assert f"cannot write to {bench.folder} and {database}: " in text
    assert f"as user {os.getuid() or NOBODY}, " in text


def test_the_user_of_a_container_can_read_what_mlflow_finds_radt_by(bench: Workbench) -> None:
    before = os.umask(0o077)
    try:
        hook = importable_folder(bench.cache) / HOOK
        hook.chmod(0o700)  # as older versions made it
        importable_folder(bench.cache)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (hook, *hook.iterdir())}
    assert modes == {HOOK: 0o755, "METADATA": 0o644, "entry_points.txt": 0o644}
