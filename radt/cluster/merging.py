"""What another node than the first has recorded of a run, as a part of the whole run.

Its series and markers get numbers of their own, and their names begin with the node's:
``node2/gpu0`` as ``node2/rank 2``. So do the names of its listeners where they are counted. What
the first node has recorded is as it is of every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from radt.delivery.archive.manifest import Part
from radt.delivery.archive.read import Archive, Piece
from radt.store.records import SERIES_OF_A_NODE, MarkerRecord
from radt.tags import CLUSTER_NODE

_MARKERS_OF_A_NODE = 1_000_000_000


@dataclass(frozen=True, slots=True)
class NodeArchive(Archive):
    """An archive whose manifest `part_of_run` has made."""

    node: str
    number: int

    def pieces(self, part: Part, file: Path) -> Iterator[list[Piece]]:
        shift = self.number * SERIES_OF_A_NODE
        for block in Archive.pieces(self, _shifted(part, -shift), file):
            yield [replace(piece, series_no=piece.series_no + shift) for piece in block]

    def markers(self, part: Part, file: Path) -> Iterator[Sequence[MarkerRecord]]:
        shift = self.number * _MARKERS_OF_A_NODE
        for block in Archive.markers(self, part, file):
            yield [
                replace(
                    marker,
                    marker_no=marker.marker_no + shift,
                    process=_joined(self.node, marker.process),
                )
                for marker in block
            ]


def part_of_run(archive: Archive, number: int) -> NodeArchive:
    """Return the archive of another node as a part of its run.

    Args:
        archive: As the node has written it.
        number: Of the node, from 1: the first one is 0.
    """
    manifest, shift = archive.manifest, number * SERIES_OF_A_NODE
    node = (manifest.tags or {}).get(CLUSTER_NODE, "")
    of_run = replace(
        manifest,
        series=[
            replace(
                record,
                series_no=record.series_no + shift,
                entity=_joined(node, record.entity),
            )
            for record in manifest.series
        ],
        parts=[_shifted(part, shift) for part in manifest.parts],
        ledger=[
            replace(ledger, listener=_joined(node, ledger.listener)) for ledger in manifest.ledger
        ],
        gaps=[
            replace(
                gap,
                listener=_joined(node, gap.listener),
                series_no=gap.series_no if gap.series_no < 0 else gap.series_no + shift,
            )
            for gap in manifest.gaps
        ],
    )
    return NodeArchive(archive.location, of_run, node, number)


def _shifted(part: Part, shift: int) -> Part:
    stretches = (
        replace(stretch, series_no=stretch.series_no + shift) for stretch in part.stretches
    )
    return replace(part, stretches=tuple(stretches))


def _joined(node: str, name: str) -> str:
    return "/".join(filter(None, (node, name)))
