"""The batch script of an array: a job sets up its node and starts the node runner as a step.

The runner is a step because only steps get a signal when a preemption's grace time begins. The
script itself handles what the job cannot do before the runner is there: see `batch_script`.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from radt.cluster.engine import ArrayRequest
from radt.cluster.settings import ClusterSettings
from radt.cluster.submission import JobArray
from radt.errors import UsageError

#: Slurm's variable with the index of a script's job in its array.
INDEX_VARIABLE = "SLURM_ARRAY_TASK_ID"

# Bash, because sites define `module` as a bash function; radt's own lines need only a POSIX shell.
_HEAD = """\
#!/bin/bash
# Array {array} of the radt submission {name}: each of its jobs runs this script.
folder={folder}
python={python}
job={array}-${{{index}}}
step=
stopping=

# Escape a text for JSON.
escaped() {{
    printf %s "$1" | tr '\\001-\\037\\177' ' ' | sed 's/[\\\\"]/\\\\&/g'
}}

# Write a file of the attempt atomically: put NAME FORMAT VALUE...
put() {{
    file=$attempts/$number/$1
    shift
    printf "$@" >"$attempts/$number/.new" && mv "$attempts/$number/.new" "$file"
}}

# Record as the job's next attempt why it runs nothing.
leave() {{
    umask 077
    printf 'radt: %s\\n' "$1" >&2
    attempts=$folder/jobs/$job/attempts
    number=1
    mkdir -p "$attempts" || exit 1
    until mkdir "$attempts/$number" 2>/dev/null; do
        [ -d "$attempts/$number" ] || exit 1
        number=$((number + 1))
    done
    put start.json \\
        '{{"host": "%s", "job_id": "%s", "pid": %d, "radt_version": "", "restarts": %d}}' \\
        "$(escaped "${{SLURMD_NODENAME:-$(uname -n)}}")" \\
        "${{SLURM_ARRAY_JOB_ID:-}}_${{{index}}}" "$$" "${{SLURM_RESTART_COUNT:-0}}"
    put statuses.1.json '{{"rows": {{}}, "ended": true, "reason": "%s"}}' "$(escaped "$1")"
    exit 1
}}

# This node cannot run radt. After two such jobs, all others are held.
unfit() {{
    umask 077
    why="$1 on ${{SLURMD_NODENAME:-$(uname -n)}}"
    mkdir -p "$folder/unfit" || leave "$why"
    mkdir "$folder/unfit/first" 2>/dev/null && leave "$why"
    if mkdir "$folder/unfit/second" 2>/dev/null; then
        printf %s "two jobs could not begin: $why" >"$folder/.hold.$job" &&
            mv "$folder/.hold.$job" "$folder/hold"
        leave "$why"
    fi
    waited=0
    until [ -e "$folder/hold" ]; do
        [ "$waited" -lt 60 ] || leave "$why"
        sleep 1
        waited=$((waited + 1))
    done
    leave "$(cat "$folder/hold")"
}}

# Slurm signals the steps itself. If this shell ended first, Slurm would kill them. srun kills its
# step at SIGTERM, so SIGTERM is not passed on.
on_signal() {{
    stopping=yes
    [ "$1" = TERM ] || [ -z "$step" ] || kill -s "$1" "$step" 2>/dev/null
}}
trap 'on_signal TERM' TERM
trap 'on_signal USR1' USR1

[ -e "$folder/hold" ] && leave "$(cat "$folder/hold")"
"""

_TAIL = """
set -u
[ -x "$python" ] || unfit "$python is missing"
"$python" -P -c 'import radt.cluster' || unfit "$python cannot import radt"
[ -z "$stopping" ] || exit 1

nodes=${{SLURM_JOB_NUM_NODES:-1}}
srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --export=ALL --input=none \\
    --kill-on-bad-exit=0 --wait=0 \\
    --cpus-per-task="${{SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}}" \\
    "$python" -P -m radt.cluster.noderunner "$folder" {array} "${{{index}}}" &
step=$!
wait "$step"
code=$?
while [ "$code" -gt 128 ] && kill -0 "$step" 2>/dev/null; do  # a signal ended only the waiting
    wait "$step"
    code=$?
done
exit "$code"
"""


def check_setup(settings: ClusterSettings) -> None:
    """Check the syntax of the site's lines with bash, if it is installed here.

    Raises:
        UsageError: They have an error.
    """
    bash = shutil.which("bash")
    if bash is None:
        return
    for line in settings.setup:
        text = f"{{\n{line}\n}}\n"
        done = subprocess.run([bash, "-n"], input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            why = done.stderr.strip().partition("\n")[0].rpartition(": ")[2]
            raise UsageError(
                f"{settings.source}: setup: bash cannot read {line!r}: {why}",
                'Write what belongs together as one text: """…"""',
            )


def batch_script(
    submission: Path, array: int, settings: ClusterSettings, *, python: str = sys.executable
) -> str:
    """Return the script that each job of an array runs.

    If a ``setup`` line fails, or the interpreter or radt is missing on the node, the script itself
    makes an attempt with that reason. The second such job writes ``hold``, which every later one
    obeys.

    Args:
        submission: The submission's folder.
        array: The number of the array in it.
        settings: Contain the lines to run first.
        python: The path of the interpreter on the nodes.
    """
    values = {
        "array": array,
        "name": submission.name,
        "folder": shlex.quote(str(submission)),
        "python": shlex.quote(python),
        "index": INDEX_VARIABLE,
    }
    setup = ""
    for line in settings.setup:
        first = line.strip().partition("\n")[0]
        setup += f"\n{{\n{line}\n}} || unfit {shlex.quote(f'setup failed ({first})')}\n"
    return _HEAD.format(**values) + setup + _TAIL.format(**values)


def array_request(
    submission: Path,
    number: int,
    array: JobArray,
    settings: ClusterSettings,
    *,
    name: str,
    intent: str,
    indices: Collection[int] | None = None,
) -> ArrayRequest:
    """Return the engine's request to run jobs of an array.

    Args:
        submission: The submission's folder.
        number: The number of the array in it.
        array: The array.
        settings: The settings of the cluster.
        name: Shown in the queue.
        intent: See `Spool.intent`.
        indices: The jobs to request; None for all.
    """
    return ArrayRequest(
        name=name,
        intent=intent,
        shape=array.shape,
        indices=range(len(array.jobs)) if indices is None else indices,
        script=batch_script(submission, number, settings),
        # With Slurm's placeholders.
        output=str(submission / "arrays" / str(number) / "output.%A_%a.log"),
        options=settings.options,
    )
