"""Stands in for docker: images that are pulled, containers that run here and see what is mounted.

Holds state in ``$FAKE_STATE``: ``docker.json`` (the daemon and its images, written by the test),
``calls``, and ``containers/NAME.json``. A container's command runs on this machine with the
variables that a container would have. Folders whose place inside differs are copied to where a
root folder stands in for the container's, so that only what is mounted can be imported.
"""

from __future__ import annotations

import csv
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

STATE = pathlib.Path(os.environ["FAKE_STATE"])
CONTAINERS = STATE / "containers"
NOT_COPIED = shutil.ignore_patterns("__pycache__", "assets", "*.js")
FLAGS = {"--rm", "--force", "-f", "--all"}
VALUED = {
    *("--name", "--label", "--user", "--group-add", "--pid", "--ipc", "--network", "--userns"),
    *("--workdir", "--mount", "--volume", "--env", "--gpus", "--cpuset-cpus", "--entrypoint"),
    *("--pull", "--format", "--filter", "--cidfile", "--memory", "--memory-swap"),
}


def fail(text: str, code: int = 1) -> None:
    print(text, file=sys.stderr)
    sys.exit(code)


def parse(words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Options, and what follows them; docker's own end at the first other word."""
    found: dict[str, list[str]] = {}
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        if name in FLAGS:
            found[name] = [""]
        elif name in VALUED:
            found.setdefault(name, []).append(value if equals else words.pop(0))
        else:
            fail(f"unknown flag: {name}", 125)
    return found, words


def inspect(images: dict, words: list[str]) -> None:
    _, (name,) = parse(words)
    if name not in images:
        fail(f"Error response from daemon: No such image: {name}")
    print(json.dumps({"Id": images[name]["id"], "Config": {"Env": images[name].get("env", [])}}))


def pull(state: dict, name: str) -> None:
    if name not in state["registry"]:
        fail(f"Error response from daemon: manifest for {name} not found: manifest unknown")
    print("5a7813e071bf: Pulling fs layer\n5a7813e071bf: Pull complete")
    state["images"][name] = state["registry"][name]
    (STATE / "docker.json").write_text(json.dumps(state))


def mounts(options: dict[str, list[str]]) -> dict[str, tuple[str, bool]]:
    """Source and whether it can be written, by target."""
    found = {}
    for text in options.get("--mount", []):
        fields = dict(part.partition("=")[::2] for part in next(csv.reader([text])))
        if fields.pop("type") != "bind":
            fail("unknown mount type", 125)
        if not pathlib.Path(fields["source"]).exists():
            fail(f"bind source path does not exist: {fields['source']}", 125)
        if fields["target"] in found:
            fail(f"Duplicate mount point: {fields['target']}", 125)
        found[fields["target"]] = (fields["source"], "readonly" not in fields)
    for text in options.get("--volume", []):
        source, target, *_ = text.split(":")
        found[target] = (source, True)
    return found


def container_env(options: dict[str, list[str]], image: dict, root: pathlib.Path) -> dict[str, str]:
    env = dict(entry.split("=", 1) for entry in image.get("env", []))
    for entry in options.get("--env", []):
        name, equals, value = entry.partition("=")
        if equals:
            env[name] = value
        elif name in os.environ:
            env[name] = os.environ[name]
    if options.get("--gpus"):
        (device,) = next(csv.reader(options["--gpus"]))
        env["NVIDIA_VISIBLE_DEVICES"] = device.removeprefix("device=")
    env.setdefault("PATH", "/usr/bin:/bin")
    env["FAKE_STATE"] = str(STATE)
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = ":".join(f"{root}{entry}" for entry in env["PYTHONPATH"].split(":"))
    return env


def refuse_what_docker_would(state: dict, options: dict[str, list[str]]) -> None:
    user = options["--user"][0]
    if user.startswith("0:") != bool(state.get("rootless")):
        fail(f"the test does not want user {user} here", 125)
    if state.get("remapped") and options.get("--userns") != ["host"] and "--pid" in options:
        fail("cannot share the host's PID namespace when user namespaces are enabled", 125)


def note_id(options: dict[str, list[str]], name: str) -> None:
    for file in map(pathlib.Path, options.get("--cidfile", [])):
        if file.exists():
            fail(
                f"container ID file found, make sure the other container isn't running: {file}", 125
            )
        file.write_text(f"id-of-{name}")


def run(state: dict, words: list[str]) -> None:
    options, (image_id, *command) = parse(words)
    found = [image for image in state["images"].values() if image["id"] == image_id]
    if not found or options.get("--pull") != ["never"]:
        fail(f"Unable to find image '{image_id}' locally", 125)
    (image,) = found
    refuse_what_docker_would(state, options)
    if problem := state.get("problem"):
        fail(problem, 125)
    name = options.get("--name", [f"unnamed-{os.getpid()}"])[0]
    user = options["--user"][0]
    visible = mounts(options)
    folder = options.get("--workdir", ["/"])[0]
    for path in (folder, *(word for word in command if word.startswith(str(STATE.parent)))):
        if "--workdir" in options and not any(
            pathlib.Path(path).is_relative_to(target) for target in visible
        ):
            fail(f"inside, there is no {path}", 127)
    root = STATE / f"root-{name}"
    for target, (source, writable) in sorted(visible.items()):
        if source != target:
            assert not writable, target
            shutil.copytree(source, f"{root}{target}", symlinks=True, ignore=NOT_COPIED)
    reset = options.get("--entrypoint") == [""]
    entry = [] if reset else image.get("entrypoint", [])
    shown = {
        "name": name,
        "image": image_id,
        "user": user,
        "groups": options.get("--group-add", []),
        "labels": dict(label.split("=", 1) for label in options.get("--label", [])),
        "mounts": visible,
        "env": container_env(options, image, root),
        "options": {key: options[key] for key in options if key not in ("--mount", "--env")},
        "arguments": sys.argv,
    }
    note_id(options, name)
    CONTAINERS.mkdir(exist_ok=True)
    if (CONTAINERS / f"{name}.json").exists():
        fail(f"Conflict. The container name {name} is already in use", 125)
    command = [*entry, *command]
    if command[0] == "sh" and not image.get("shell", True):
        fail("exec: sh: executable file not found in $PATH", 127)
    try:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=shown["env"],
            start_new_session=True,  # it is docker's, and survives its client
        )
    except OSError as error:
        fail(f"exec: {command[0]}: {error.strerror}", 127)
    shown["pid"] = child.pid
    (CONTAINERS / f"{name}~").write_text(json.dumps(shown))
    # Before anybody can know of the container, and send a signal.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: kill(child.pid, received))
    (CONTAINERS / f"{name}~").rename(CONTAINERS / f"{name}.json")  # whole or not there
    code = child.wait()
    if "--rm" in options:
        (CONTAINERS / f"{name}.json").rename(CONTAINERS / f"{name}.ended")
    sys.exit(code if code >= 0 else 128 - code)


def kill(container: int, number: int) -> None:
    try:
        os.killpg(container, number)
    except ProcessLookupError:
        pass  # it has just ended


def remove(words: list[str]) -> None:
    options, (name,) = parse(words)
    file = CONTAINERS / f"{name}.json"
    if not file.exists():
        fail(f"Error response from daemon: No such container: {name}")
    if not {"--force", "-f"} & options.keys():
        fail("container is running: stop the container before removing or force remove")
    kill(json.loads(file.read_text())["pid"], signal.SIGKILL)
    file.unlink(missing_ok=True)


def processes(words: list[str]) -> None:
    options, _ = parse(words)
    (label,) = options["--filter"]
    for file in sorted(CONTAINERS.glob("*.json")):
        shown = json.loads(file.read_text())
        if label.removeprefix("label=") in shown["labels"]:
            text = options["--format"][0].replace("{{.Names}}", shown["name"])
            for key, value in shown["labels"].items():
                text = text.replace(f'{{{{.Label "{key}"}}}}', value)
            print(text)


def main() -> None:
    verb, *words = sys.argv[1:]
    with (STATE / "calls").open("a", encoding="utf-8") as calls:
        calls.write(f"{verb} {' '.join(words)}\n")
    state = json.loads((STATE / "docker.json").read_text())
    if state.get("trouble"):
        fail(state["trouble"])
    if verb == "info":
        names = [name for name in ("rootless", "userns") if state.get(name)]
        names += ["userns"] if state.get("remapped") else []
        print(json.dumps(["name=seccomp,profile=builtin", *(f"name={name}" for name in names)]))
    elif verb == "image":
        inspect(state["images"], words[1:])
    elif verb == "pull":
        while (STATE / "hold").exists():
            time.sleep(0.02)
        pull(state, *words)
    elif verb == "run":
        run(state, words)
    elif verb == "rm":
        remove(words)
    elif verb == "ps":
        processes(words)
    else:
        fail(f"docker: '{verb}' is not a docker command")


main()
