"""Environment variables of MLflow's client: radt's defaults, and a server's storage of files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

#: For commands, whose user waits for the answer.
FOR_COMMANDS: Mapping[str, str] = MappingProxyType(
    {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
)
#: For the uploader, which retries failed requests itself and serves other runs meanwhile. MLflow's
#: own retries would block it for minutes.
FOR_UPLOADER: Mapping[str, str] = MappingProxyType(
    {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
        # A background process must not report usage to a third party.
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        # Log records go to our log.
        "MLFLOW_CONFIGURE_LOGGING": "false",
    }
)
#: The server's storage for ``mlflow-artifacts:``. Read by MLflow's server, and by radt on machines
#: that can access the storage directly.
DESTINATION = "MLFLOW_ARTIFACTS_DESTINATION"

#: Artifact root of experiments that are created in a database, without a server.
ROOT = "MLFLOW_DEFAULT_ARTIFACT_ROOT"

#: S3 addresses from a server may be unreachable from here, and such transfers have no timeout. A
#: server (3.17) offers both whenever it keeps files in S3, and this cannot be configured.
_EVERYWHERE = {
    "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "false",
    "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",  # would be written to stderr
}


def set_client_defaults(own: Mapping[str, str] = MappingProxyType({})) -> None:
    """Set the variables that the user has not set, before MLflow's client is used.

    ``own`` are the caller's variables, such as `FOR_COMMANDS`.
    """
    for name, value in {**_EVERYWHERE, **own}.items():
        os.environ.setdefault(name, value)


def longest_request_s() -> float:
    """Return how long a request of MLflow's client may take with all retries.

    Users may set more than `FOR_UPLOADER` does. A server that requests a longer pause may get it.
    """
    from urllib3.util import Retry

    mlflow: Any = import_module("mlflow.environment_variables")
    retries = mlflow.MLFLOW_HTTP_REQUEST_MAX_RETRIES.get()
    longest_pause_s = Retry.DEFAULT_BACKOFF_MAX + mlflow.MLFLOW_HTTP_REQUEST_BACKOFF_JITTER.get()
    return float(
        (retries + 1) * mlflow.MLFLOW_HTTP_REQUEST_TIMEOUT.get() + retries * longest_pause_s
    )


def direct_uri(artifact_uri: str) -> str:
    """Return the S3 address of files that a server keeps there, if `DESTINATION` names it.

    Any other address is returned unchanged.
    """
    destination, address = os.environ.get(DESTINATION, ""), urlsplit(artifact_uri)
    is_own = address.scheme == "mlflow-artifacts" and not address.netloc
    if not (is_own and destination.startswith("s3://")):
        return artifact_uri
    return f"{destination.rstrip('/')}/{address.path.lstrip('/')}"
