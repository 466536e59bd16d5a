"""Gives a Kafka Connect the connectors that `saga changes connector` prints; those that are there already get their new
configuration.

    saga changes connector services.intake | python apply.py http://connect:8083
"""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

ASK_S_MAX = 30.0


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
            with urllib.request.urlopen(request, timeout=ASK_S_MAX) as answer:
                sys.stdout.write(f"{connector['name']}: {answer.status}\n")
        except urllib.error.HTTPError as why:
            with why:
                said = why.read(2000).decode(errors="replace")
            sys.stderr.write(f"{connector['name']} is refused with {why.code}: {said!a}\n")
            return 1
        except OSError as why:
            sys.stderr.write(f"{address} does not answer: {str(why)!a}\n")
            return 1
    return 0 if connectors else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.stdin.read()))
