"""Brings uv what pip is configured with: the index of a company, a folder of wheels."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from radt.environments.tool import Report, run_tool

#: ``global.index-url='https://…'``; later of these win.
_SCOPES = ("global", "install", ":env:")


@dataclass(frozen=True, slots=True)
class PipConfig:
    """pip's options by their long names; empty without pip."""

    options: Mapping[str, str]

    @property
    def no_index(self) -> bool:
        """Whether no index may be used; uv has an option for it, but no variable."""
        return self.options.get("no-index", "").lower() in ("1", "true", "yes", "on")

    def uv_variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Variables that make uv look for packages where pip would.

        What is set for uv itself stays. Where pip has extra indexes, the best version of all is
        taken, as pip does: https://docs.astral.sh/uv/pip/compatibility/
        """
        found: dict[str, str] = {}

        def carry(option: str, name: str, *others: str, separator: str = " ") -> bool:
            values = self.options.get(option, "").split()
            if option == "find-links":  # to uv a folder that is missing is an error
                values = [one for one in values if "://" in one or Path(one).is_dir()]
            if not values or not set(environ).isdisjoint((name, *others)):
                return False
            found[name] = separator.join(values)
            return True

        carry("index-url", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
        if carry("extra-index-url", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_INDEX_STRATEGY"):
            found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
        carry("find-links", "UV_FIND_LINKS", separator=",")
        carry("trusted-host", "UV_INSECURE_HOST")
        carry("cert", "SSL_CERT_FILE")
        return found


def read_pip_config(environ: Mapping[str, str], report: Report) -> PipConfig:
    """pip's options as pip itself reads them, from its files and variables."""
    # Not for the log: proxies and indexes may have passwords.
    command = [sys.executable, "-m", "pip", "config", "list"]
    answer = run_tool(command, report, env=environ, private=True)
    found: dict[str, dict[str, str]] = {scope: {} for scope in _SCOPES}
    for line in answer.output.splitlines() if answer.code == 0 else ():
        name, equals, value = line.partition("=")
        scope, _, option = name.rpartition(".")
        if equals and scope in found:
            try:
                found[scope][option] = str(ast.literal_eval(value))
            except (SyntaxError, ValueError):
                continue  # not a value that pip has quoted
    return PipConfig(found["global"] | found["install"] | found[":env:"])
