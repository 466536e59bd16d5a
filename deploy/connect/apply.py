"""Gives a Kafka Connect the connectors that `saga changes connector` prints; those that are there already get their new
configuration.

    saga changes connector services.intake | python apply.py http://connect:8083
"""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

ASK_S_MAX = 30.0
REBALANCES = 409
"""Status with which Kafka Connect refuses for a moment, while its workers rebalance."""
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Pauses before the same is sent again, while Kafka Connect rebalances."""


def documents(text: str) -> Iterator[Any]:
    """JSON documents, one behind the other."""
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        document, at = decoder.raw_decode(text, at)
        yield document


def main(address: str, text: str) -> int:
    """Exit code: 1 if Kafka Connect refuses one or does not answer, 2 if there is none."""
    connectors = list(documents(text))
    for connector in connectors:
        request = urllib.request.Request(
            f"{address}/connectors/{quote(connector['name'], safe='')}/config",
            data=json.dumps(connector["config"]).encode(),
            headers={"content-type": "application/json"},
            method="PUT",
        )
        try:
            sys.stdout.write(f"{connector['name']}: {status_of(request)}\n")
        except urllib.error.HTTPError as why:
            with why:
                said = why.read(2000).decode(errors="replace")
            sys.stderr.write(f"{connector['name']} is refused with {why.code}: {said!a}\n")
            return 1
        except OSError as why:
            sys.stderr.write(f"{address} does not answer: {str(why)!a}\n")
            return 1
    return 0 if connectors else 2


def status_of(request: urllib.request.Request) -> int:
    """Send a request, again while Kafka Connect rebalances. Return the status; raises `OSError`."""
    for pause_s in (*PAUSES_S, None):
        try:
            with urllib.request.urlopen(request, timeout=ASK_S_MAX) as answer:
                status: int = answer.status
                return status
        except urllib.error.HTTPError as why:
            if why.code != REBALANCES or pause_s is None:
                raise
            why.close()
            time.sleep(pause_s)  # noqa: TID251 - this script runs without the toolkit
    raise AssertionError("the last attempt returns or raises")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.stdin.read()))
