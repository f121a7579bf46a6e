"""Archives of runs: a folder with all data of a run, as a sequence of bundles::

    radt/
    ├── RUN.1.radt          a bundle: the data of the run when it was written
    ├── RUN.2.radt          data added since then
    ├── samples.parquet     the samples of a run that has ended, for people without radt
    └── run.json            everything else in the store, for the same people

A bundle never changes, and none is ever deleted. `spool` writes them, `radt.delivery.mlflow`
uploads them, and `locations` says where they may be: a folder, S3, MLflow's artifacts. An import
(`read`) goes backwards to the first bundle with something that the store lacks, and applies from
there.
"""

from __future__ import annotations

from radt.errors import ArchiveError

#: Folder of the archive in a run's artifacts.
ARCHIVE_FOLDER = "radt"
SAMPLES_FILE = "samples.parquet"
#: The manifest of archives from before bundles had the same name (`radt.delivery.archive.parquet`).
DESCRIPTION_FILE = "run.json"


class FileMissingError(ArchiveError):
    """An archive, or one of its files, is missing."""
