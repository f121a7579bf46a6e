"""The little of MLflow's REST API (2.0) that the dashboard needs, without MLflow itself.

MLflow's own package costs two seconds and a hundred megabytes. Credentials are taken from where it
takes them: the URI, ``MLFLOW_TRACKING_USERNAME`` and ``_PASSWORD``, ``MLFLOW_TRACKING_TOKEN``,
``~/.mlflow/credentials``; certificates from ``MLFLOW_TRACKING_SERVER_CERT_PATH`` and
``MLFLOW_TRACKING_INSECURE_TLS``.
"""

from __future__ import annotations

import configparser
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import requests
from requests.auth import HTTPBasicAuth

from radt.errors import TrackingError
from radt.masking import masked

_CONNECT_S = 10.0
_ANSWER_S = 60.0
_CHUNK_BYTES = 1 << 20
_EXPERIMENTS_A_PAGE = 1000
#: Also metrics, parameters and tags of each run are in the answer.
RUNS_A_PAGE = 200
#: What MLflow's own client takes are 25,000; of a metric that grows the last page is asked again.
POINTS_A_PAGE = 10_000
_HTTP_UNAUTHORIZED = 401
_HTTP_FORBIDDEN = 403
_HTTP_NOT_FOUND = 404


class NoSuchArtifactError(TrackingError):
    """The run has no such artifact."""


class MlflowApi:
    """One tracking server. Not thread-safe: each thread has its own.

    Args:
        uri: ``http://`` or ``https://``, maybe with user and password.
        environ: The variables.
    """

    def __init__(self, uri: str, environ: Mapping[str, str] = os.environ) -> None:
        self.where = masked(uri)
        parts = urlsplit(uri)
        self._root = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
        self._session = requests.Session()
        user, password = _user_and_password(parts.username, parts.password, environ)
        if user:
            # As bytes, or requests would write them in Latin-1.
            self._session.auth = HTTPBasicAuth(user.encode(), password.encode())
        elif token := environ.get("MLFLOW_TRACKING_TOKEN"):
            self._session.headers["Authorization"] = f"Bearer {token}"
        if environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
            self._session.verify = False
        elif certificates := environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH"):
            self._session.verify = certificates

    def close(self) -> None:
        self._session.close()

    def experiments(self) -> dict[str, str]:
        """Names of all experiments by id.

        Raises:
            TrackingError: The server does not answer, or refuses.
        """
        found: dict[str, str] = {}
        body: dict[str, Any] = {"max_results": _EXPERIMENTS_A_PAGE, "view_type": "ACTIVE_ONLY"}
        while True:
            answer = self._ask("experiments/search", body)
            for one in answer.get("experiments", ()):
                found[str(one["experiment_id"])] = str(one["name"])
            if not (token := answer.get("next_page_token")):
                return found
            body["page_token"] = token

    def runs(self, experiment_ids: list[str], condition: str) -> Iterator[list[dict[str, Any]]]:
        """Runs that meet a condition in MLflow's search language, the newest first, page by page.

        Raises:
            TrackingError: See `experiments`.
        """
        body: dict[str, Any] = {
            "experiment_ids": experiment_ids,
            "filter": condition,
            "run_view_type": "ACTIVE_ONLY",
            "max_results": RUNS_A_PAGE,
            "order_by": ["attributes.start_time DESC"],
        }
        while experiment_ids:
            answer = self._ask("runs/search", body)
            yield list(answer.get("runs", ()))
            if not (token := answer.get("next_page_token")):
                return
            body["page_token"] = token

    def run(self, run_id: str) -> dict[str, Any]:
        """One run as in `runs`, with the last point of each of its metrics.

        Raises:
            TrackingError: See `experiments`; or it was deleted for good.
        """
        answer = self._json("GET", "/api/2.0/mlflow/runs/get", params={"run_id": run_id})
        found: dict[str, Any] = answer["run"]
        return found

    def history(
        self, run_id: str, metric: str, page_token: str
    ) -> tuple[list[dict[str, Any]], str]:
        """A page of a metric's points in the order of time, and what asks for the next.

        Args:
            run_id: MLflow's id of the run.
            metric: Its key.
            page_token: Empty for the first page.

        Raises:
            TrackingError: See `experiments`.
        """
        query = {"run_id": run_id, "metric_key": metric, "max_results": str(POINTS_A_PAGE)}
        if page_token:
            query["page_token"] = page_token
        answer = self._json("GET", "/api/2.0/mlflow/metrics/get-history", params=query)
        return list(answer.get("metrics", ())), str(answer.get("next_page_token", ""))

    def has_artifact(self, run_id: str, path: str) -> bool:
        """Whether a run has an artifact.

        Raises:
            TrackingError: See `experiments`.
        """
        folder = path.rpartition("/")[0]
        query: dict[str, str] = {"run_id": run_id, "path": folder}
        while True:
            answer = self._json("GET", "/api/2.0/mlflow/artifacts/list", params=query)
            if any(one.get("path") == path for one in answer.get("files", ())):
                return True
            if not (token := answer.get("next_page_token")):
                return False
            query["page_token"] = token

    def fetch_artifact(self, run_id: str, path: str, target: Path) -> None:
        """Copy an artifact of a run to a file, through the server.

        Raises:
            NoSuchArtifactError: It is not there.
            TrackingError: See `experiments`.
            OSError: The file cannot be written.
        """
        query = {"run_id": run_id, "path": path}
        with self._answer("GET", "/get-artifact", params=query, stream=True) as answer:
            try:
                with target.open("wb") as file:
                    for block in answer.iter_content(_CHUNK_BYTES):
                        file.write(block)
            except requests.RequestException as error:
                raise self._unreachable(error) from error

    def _ask(self, call: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._json("POST", f"/api/2.0/mlflow/{call}", json=body)

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        with self._answer(method, path, **options) as answer:
            try:
                found = json.loads(answer.content)
            except requests.RequestException as error:
                raise self._unreachable(error) from error
            except ValueError:
                found = None
        if not isinstance(found, dict):
            raise TrackingError(
                f"what answers at {self.where} is no MLflow server",
                "Check the address (--tracking-uri, RADT_TRACKING_URI)",
            )
        return found

    def _answer(self, method: str, path: str, **options: Any) -> requests.Response:
        try:
            answer = self._session.request(
                method, self._root + path, timeout=(_CONNECT_S, _ANSWER_S), **options
            )
        except requests.RequestException as error:
            raise self._unreachable(error) from error
        if answer.ok:
            return answer
        with answer:
            raise self._refusal(answer)

    def _refusal(self, answer: requests.Response) -> TrackingError:
        status = answer.status_code
        if status == _HTTP_UNAUTHORIZED:
            return TrackingError(
                f"MLflow at {self.where} refuses user and password ({status})",
                "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
            )
        message = f"MLflow at {self.where} answers {status}: {_said(answer)}"
        if status == _HTTP_FORBIDDEN:
            return TrackingError(
                message, "Ask who runs it for access, or to allow this name of it (--allowed-hosts)"
            )
        if status == _HTTP_NOT_FOUND:
            return NoSuchArtifactError(message, "Check the address")
        return TrackingError(message, "Its log may say more; it is tried again")

    def _unreachable(self, error: requests.RequestException) -> TrackingError:
        if isinstance(error, requests.exceptions.SSLError):
            return TrackingError(
                f"the certificate of MLflow at {self.where} is not accepted",
                "Set MLFLOW_TRACKING_SERVER_CERT_PATH to the authority that signed it",
            )
        reason = (
            "it does not answer in time" if isinstance(error, requests.Timeout) else _root(error)
        )
        return TrackingError(
            f"MLflow at {self.where} cannot be reached ({reason})",
            "Check that it runs and that this machine reaches it; it is tried again",
        )


def _said(answer: requests.Response) -> str:
    """MLflow's own words, or what else there is of a short text."""
    try:
        body = answer.content
    except requests.RequestException:
        return answer.reason or "no reason given"
    try:
        text = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")
        if "<" in text or not text.strip():  # a page
            text = answer.reason or "no reason given"
    return masked(" ".join(text.split()))[:200]


def _root(error: BaseException) -> str:
    """What is at the bottom of requests' wrappings: ``Connection refused``."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        reason = getattr(seen, "reason", None) or (seen.args[0] if seen.args else None)
        nested = reason if isinstance(reason, BaseException) else None
        seen = nested or seen.__cause__ or (seen.__context__ if nested is None else None)
    return "the connection failed"


def _user_and_password(
    user: str | None, password: str | None, environ: Mapping[str, str]
) -> tuple[str, str]:
    if user:
        return unquote(user), unquote(password or "")
    if name := environ.get("MLFLOW_TRACKING_USERNAME"):
        return name, environ.get("MLFLOW_TRACKING_PASSWORD", "")
    file = configparser.RawConfigParser()
    try:
        file.read(Path.home() / ".mlflow" / "credentials", encoding="utf-8")
        section = file["mlflow"]
    except (OSError, RuntimeError, KeyError, configparser.Error, UnicodeDecodeError):
        return "", ""
    return section.get("mlflow_tracking_username", ""), section.get("mlflow_tracking_password", "")
