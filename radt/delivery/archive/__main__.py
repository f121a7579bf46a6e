"""Write the archives of runs: ``python -m radt.delivery.archive --store FILE RUN…``.

The uploader starts this as a separate process, because Arrow needs more memory than the whole
uploader. For each run it prints a line of JSON (`Outcome`); its exit code is 0 if it printed one
for each.

With ``--into FOLDER`` it writes them into folders of their own there, whoever else archives these
runs, and takes their ids from standard input, a line each, until that ends.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from radt.delivery.archive.spool import Outcome
from radt.delivery.process import block_pandas, give_way, run_when_idle
from radt.home import RunDir

if TYPE_CHECKING:
    from radt.store.reader import StoreReader

log = logging.getLogger("radt.delivery.archive")


def main(arguments: Sequence[str] | None = None) -> int:
    """Archive the runs; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m radt.delivery.archive")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--when-idle", action="store_true", help="nobody waits for it")
    parser.add_argument("--into", type=Path, help="take the runs from standard input")
    parser.add_argument("runs", nargs="*")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
    )
    if options.when_idle:
        run_when_idle()
    else:
        give_way()
    block_pandas()
    from radt.errors import RadtError
    from radt.store.reader import StoreReader

    try:
        with StoreReader(options.store) as reader:
            for run_id in map(str.strip, sys.stdin) if options.into else options.runs:
                outcome = _archive(reader, run_id, options.into)
                sys.stdout.write(json.dumps(outcome.to_json()) + "\n")
                sys.stdout.flush()
    except RadtError:
        log.exception("archives cannot be written")
        return 1
    return 0


def _archive(reader: StoreReader, run_id: str, into: Path | None = None) -> Outcome:
    from radt.delivery.archive.spool import ArchiveSpool, progress_of
    from radt.delivery.archive.write import PrunedError, write_archive
    from radt.errors import CodecError, RadtError

    try:
        if into is not None:
            spool = ArchiveSpool(into / run_id)
            with spool.locked(wait=True):
                write_archive(reader, run_id, spool)
            return Outcome(run_id)
        spool = ArchiveSpool.of(RunDir(Path(reader.run(run_id).spool)))
        # A delivered run was archived by another process, after the requesting process was killed.
        if not progress_of(reader, run_id).delivered:
            with spool.locked(wait=True):
                if not progress_of(reader, run_id).delivered:
                    write_archive(reader, run_id, spool)
    except (CodecError, PrunedError) as error:
        return Outcome(run_id, error.message, final=True)
    except RadtError as error:
        return Outcome(run_id, error.message)
    except OSError as error:
        return Outcome(run_id, f"{error.filename or 'the spool'}: {error.strerror or error}")
    # A failure of one run must not delay the others.
    except Exception as error:
        log.exception("the archive of run %s", run_id)
        return Outcome(run_id, f"{type(error).__name__}: {error}")
    return Outcome(run_id)


if __name__ == "__main__":
    sys.exit(main())
