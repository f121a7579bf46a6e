"""Export runs that have ended: ``python -m radt.delivery.archive --store FILE RUN…``.

The uploader starts this as a separate process, because Arrow needs more memory than the whole
uploader. For each run it prints a line of JSON: its id, the problem (empty if it is exported), and
whether a retry cannot help.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from radt.delivery.archive.spool import ArchiveSpool, progress_of
from radt.delivery.process import block_pandas, give_way
from radt.home import RunDir
from radt.processes import die_with_parent

if TYPE_CHECKING:
    from radt.store.reader import StoreReader

log = logging.getLogger("radt.delivery.archive")


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the runs; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m radt.delivery.archive")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("runs", nargs="*")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
    )
    # Without the uploader, nothing would upload the files; the next uploader has them written
    # again.
    die_with_parent()
    give_way()
    block_pandas()
    from radt.errors import RadtError
    from radt.store.reader import StoreReader

    try:
        with StoreReader(options.store) as reader:
            for run_id in options.runs:
                sys.stdout.write(json.dumps([run_id, *_export(reader, run_id)]) + "\n")
                sys.stdout.flush()
    except RadtError:
        log.exception("runs cannot be exported")
        return 1
    return 0


def _export(reader: StoreReader, run_id: str) -> tuple[str, bool]:
    from radt.delivery.archive import DESCRIPTION_FILE, SAMPLES_FILE
    from radt.errors import CodecError, RadtError
    from radt.store.export import ExportFormat, describe_run, export_run

    try:
        run = reader.run(run_id)
        spool = ArchiveSpool.of(RunDir(Path(run.spool)))
        folder = spool.export_folder(progress_of(reader, run_id).revision)
        folder.mkdir(parents=True, exist_ok=True)
        export_run(reader, run, folder / SAMPLES_FILE, ExportFormat.PARQUET)
        describe_run(reader, run, folder / DESCRIPTION_FILE)
    except CodecError as error:
        return error.message, True
    except RadtError as error:
        return error.message, False
    except OSError as error:
        return f"{error.filename or 'the spool'}: {error.strerror or error}", False
    # A failure of one run must not delay the others.
    except Exception as error:
        log.exception("the export of run %s", run_id)
        return f"{type(error).__name__}: {error}", False
    return "", False


if __name__ == "__main__":
    sys.exit(main())
