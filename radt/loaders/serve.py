"""``python -m radt.loaders.serve``: the server of a `radt.loaders.SharedLoader`.

Consumers and service rows start it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import closing, suppress

from radt.errors import LoaderError, RadtError
from radt.loaders import wire
from radt.loaders.scope import scoped
from radt.loaders.shared.factory import Factory
from radt.loaders.shared.server import LoaderServer
from radt.loaders.shared.starting import ServerOptions

#: Retry interval: a server that ends releases its name before its connections, or shortly after.
_RETRY_S = 0.01


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a loader until asked to end. Return the exit code."""
    chosen = _parser().parse_args(argv)
    try:
        if chosen.listener is not None:
            given = json.loads(sys.stdin.buffer.read())
            factory = Factory.from_json(given["factory"])
            options = ServerOptions(**given["options"])
            os.sched_setaffinity(0, given["cpus"])
            listening = wire.inherited_listener(chosen.listener)
            is_service = False
        else:
            factory = Factory.named(chosen.factory, _arguments(chosen.arguments))
            options = _options(chosen)
            listening = _listening(factory, options)
            is_service = True
        return LoaderServer(factory, options, listening, is_service=is_service).run()
    except RadtError as error:
        sys.stderr.write(f"radt: {error}\n")
        return error.exit_code


def _listening(factory: Factory, options: ServerOptions) -> socket.socket:
    """Return the socket of the loader's name, taken over from a consumer's server if there is one.

    Raises:
        LoaderError: Another service has it, or a server with another factory.
    """
    name = scoped(options.name)
    while True:
        if (found := wire.listener(name)) is not None:
            return found
        if (connection := wire.connect(name)) is not None:
            with closing(connection), suppress(wire.Closed):  # just ended: try again
                connection.send({"replace": factory.to_json()})
                answer = connection.receive()
                assert answer is not None
                if answer.descriptor >= 0:
                    return wire.inherited_listener(answer.descriptor)
                if (other := answer.json["refused"]) is None:
                    raise LoaderError(
                        f"the shared loader {options.name!r} has a service already",
                        "Choose another name for this one",
                    )
                raise factory.refusal(options.name, Factory.from_json(other), "service")
        time.sleep(_RETRY_S)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m radt.loaders.serve",
        description="Load data once for all SharedLoader(..., name=NAME) on this machine.",
    )
    parser.add_argument("factory", help="FILE.py:function or module:function that makes the loader")
    parser.add_argument("--name", required=True, help="name of the SharedLoader")
    parser.add_argument("--arguments", default="{}", help="arguments of the function, as JSON")
    parser.add_argument("--buffer", type=int, default=2, help="batches ahead of the slowest")
    parser.add_argument("--window-bytes", type=int, default=0, help="memory for who joins late")
    parser.add_argument("--linger", type=float, help="end when nobody is left for so many seconds")
    parser.add_argument("--stall-timeout", type=float, help="evict who holds up others for so long")
    parser.add_argument("--listener", type=int, help="for consumers: a descriptor to accept from")
    return parser


def _options(chosen: Namespace) -> ServerOptions:
    return ServerOptions(
        chosen.name, chosen.buffer, chosen.window_bytes, chosen.linger, chosen.stall_timeout
    )


def _arguments(text: str) -> dict[str, object]:
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise LoaderError(
            f"--arguments is {text!r}", 'Expected a JSON object such as {"folder": "train"}'
        )
    return arguments


if __name__ == "__main__":
    sys.exit(main())
