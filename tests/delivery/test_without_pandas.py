"""The processes that deliver and import do without pandas, which would double their memory.

The uploader does without FastAPI, too.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: `radt import` reads these itself; a dashboard's importer reads MLflow only.
_WITH_READERS_OF_OTHERS = {"tensorboard", "wandb"}


def test_every_module_is_imported_without_pandas() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("delivery/mlflow", "delivery/archive", "importers")
        for path in (ROOT / "radt" / package).glob("[a-z]*.py")
        if path.stem not in _WITH_READERS_OF_OTHERS
    ]
    assert len(modules) > 12
    program = (
        "import importlib, sys\n"
        "from radt.delivery.mlflow.__main__ import _set_up_mlflow\n"
        "_set_up_mlflow()\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "importlib.import_module('mlflow.store.tracking.sqlalchemy_store')\n"
        "assert not {'fastapi', 'pandas', 'pygments'} & sys.modules.keys()\n"
        "import pyarrow\n"
        "pyarrow.table({'value': pyarrow.array([1, None]).take(pyarrow.array([1]))})\n"
    )
    subprocess.run([sys.executable, "-c", program, *sorted(modules)], check=True)
