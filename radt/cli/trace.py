"""``radt trace``: write a run as one file for trace viewers."""

from __future__ import annotations

from pathlib import Path

import click

from radt.cli.options import store_options
from radt.store.locate import Places, Readers
from radt.trace.build import MAX_POINTS, Contents, write_trace
from radt.trace.torch_trace import ClockMap
from radt.units import duration, plural, size

_VIEWER = "https://ui.perfetto.dev"


@click.command("trace")
@click.argument("run")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write; compressed if it ends in .gz.  [default: the run's id, here]",
)
@click.option("--alone", is_flag=True, help="Leave out the runs that shared the machine.")
@store_options
def command(run: str, output: Path | None, alone: bool, places: Places) -> None:
    """Write a RUN (id, or its first characters) as a file for ui.perfetto.dev.

    The file has the run's epochs and spans, its measured and logged values, the other runs of its
    workload, and PyTorch's traces (listener torchprof), all on one clock.
    """
    with Readers(places) as readers:
        reader, record = readers.find_run(run)
        path = output or Path(f"{record.run_id[:12]}.trace.json.gz")
        contents = write_trace(reader, record, path, alone=alone, max_points=MAX_POINTS)
    click.echo(f"{path}  {size(path.stat().st_size)}; open it at {_VIEWER}")
    for line in _lines(contents):
        click.echo(f"  {line}")


def _lines(contents: Contents) -> list[str]:
    """Describe the content of the file and what is missing from it."""
    runs = plural(contents.runs - 1, "neighbour") if contents.runs > 1 else "no neighbours"
    series = f"{contents.series:,} series of {plural(contents.points, 'value')}"
    lines = [f"{runs}, {plural(contents.markers, 'epoch or span', 'epochs and spans')}, {series}"]
    if contents.shortened:
        lines.append(
            f"{plural(contents.shortened, 'long series', 'long series')} shortened to "
            f"{contents.limit:,} values each, extremes kept; radt export has all"
        )
    if contents.gaps:
        lines.append(
            f"{plural(contents.gaps, 'gap')}: counters are 0 there, the gaps' row says why"
        )
    lines += [
        f"{torch.path.name}: {plural(torch.events, 'event')}, {_placed(torch.clock)}"
        for torch in contents.torch
    ]
    lines += [f"{path} is left out: {reason}" for path, reason in contents.broken.items()]
    lines += [f"{path} needs NVIDIA's own viewer" for path in contents.foreign]
    return lines


def _placed(clock: ClockMap) -> str:
    """Describe how a PyTorch trace was mapped to the run's clock."""
    if clock.error_ns is None:
        return "placed by the wall clock, because it does not record radt's clock"
    drift = f", drift of {duration(abs(clock.drift_ns) / 1e9)} taken out" if clock.drift_ns else ""
    return f"on the run's clock within {duration(clock.error_ns / 1e9)}{drift}"
