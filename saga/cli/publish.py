"""`saga publish`: publish events that are given as lines of JSON. All lines are checked before the first event is
published."""

import asyncio
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import IO, NamedTuple

import click

from saga.cli.options import broker_option
from saga.cli.printing import print_error, print_json, print_lines
from saga.clients.client import Client
from saga.clients.events import check_principal, to_value
from saga.configuration.settings import Settings
from saga.contracts import codec
from saga.contracts.codegen import make_event_class
from saga.contracts.contract import Contract
from saga.contracts.examples import make_example
from saga.contracts.json_form import read_json
from saga.contracts.library import Library, contract_of, find_library
from saga.errors import BadInput, ConfigurationError, SagaError
from saga.messages import Event

BATCH = 500
"""Number of events that are published together."""
LINE_TIMES = 4
"""Maximum size of a line, as a multiple of the maximum size of a record. JSON needs more space than Avro."""
SPOOL_BYTES_MAX = 32_000_000
"""Maximum size in bytes of input that is kept in memory while it is checked. Larger input is kept on disk."""
PROBLEMS_SHOWN_MAX = 20
PROBLEMS_OF_LINE_MAX, PROBLEMS_MAX = 20, 10_000
"""Maximum number of problems that are reported for one line, and for all lines. Other wrong lines are only counted."""


class LineProblem(NamedTuple):
    """A problem in one line of the input, such as a field with a wrong value or a line that is too long."""

    line: int
    what: str
    """Description of the problem, with the name of the field."""


@click.command()
@click.argument("event")
@click.option("--file", "file", type=click.File("rb"), default="-", help="File with the lines, instead of stdin.")
@click.option(
    "--principal", metavar="TEXT", help="Who starts the sagas, for example user:4711. Default: no name is recorded."
)
@broker_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@click.option("--example", is_flag=True, help="Print a line with made-up values, and publish nothing.")
def publish(
    event: str, file: IO[bytes], principal: str | None, broker: str | None, as_json: bool, example: bool
) -> None:
    """Publish one event for each line of JSON.

    \b
    saga publish OrderPlaced --example > orders.jsonl
    saga publish OrderPlaced < orders.jsonl

    EVENT is the name of a contract with "produced_by":
    "external", in its newest version; contracts/ is searched from the current folder upwards. A line is an object with
    the event's fields: decimals, dates, times and UUIDs are text, bytes are base64, a field with a default may be left
    out.

    All lines are checked first, and all problems are printed: if a line is invalid, nothing is published. Equal events
    count as one event, however often they are published. So if this command is interrupted, call it again with the same
    file.

    \b
    Exit code 0: all events are durable in the broker.
    Exit code 1: a line is invalid (nothing was published), or the broker did not acknowledge everything.
    Exit code 2: no such contract, the broker cannot be reached, or the topic does not exist (`saga topics apply`).
    """
    check_principal(principal)
    library = find_library()
    contract = _find_contract(event, library)
    if example:
        print_json(make_example(contract))
        return
    if principal is not None and not contract.starts:
        raise click.UsageError(f"--principal: {event} starts no saga, so it has no principal")
    bytes_max = Settings.from_environment().record_bytes_max
    to = make_event_class(contract, library)
    with SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX) as spool:
        problems, wrong = check_lines(file, to, bytes_max, spool)
        if wrong:
            _refuse(problems, wrong, contract, as_json)
            sys.exit(1)
        spool.seek(0)
        published = asyncio.run(_publish(spool, to, Client(broker, principal=principal)))
    if as_json:
        print_json({"event": contract.name, "topic": contract.topic, "published": published})
    else:
        print_lines(f"{published} {contract.name} published to {contract.topic}")


def check_lines(lines: IO[bytes], to: type[Event], bytes_max: int, spool: IO[bytes]) -> tuple[list[LineProblem], int]:
    """Check the lines. Return the problems, and the number of lines with problems.

    All non-empty lines before the first wrong one are copied to `spool`.

    Args:
        to: Class of the event.
        bytes_max: Maximum size of a record in bytes.
    """
    problems: list[LineProblem] = []
    wrong = 0
    most = LINE_TIMES * bytes_max
    for number, line in enumerate(iter(lambda: lines.readline(most + 1), b""), start=1):
        if len(line) > most:
            problems.append(LineProblem(number, f"is longer than {most} bytes; later lines were not checked"))
            return problems, wrong + 1
        if not line.strip():
            continue
        found = list(islice(_find_mistakes(line, to, bytes_max), PROBLEMS_OF_LINE_MAX + 1))
        wrong += bool(found)
        if len(found) > PROBLEMS_OF_LINE_MAX:
            found[-1] = "and more"
        if len(problems) < PROBLEMS_MAX:
            problems += [LineProblem(number, what) for what in found]
        if not wrong:
            spool.write(line if line.endswith(b"\n") else line + b"\n")
    return problems, wrong


def _find_contract(name: str, library: Library) -> Contract:
    contract = library.contracts.get(name)
    if contract is None:
        close = get_close_matches(name, library.contracts, n=1)
        hint = f"is it {close[0]}?" if close else f"there are {', '.join(sorted(library.contracts))}"
        raise click.UsageError(f"{name} is no contract in {library.folder}; {hint}")
    if not contract.produced_externally:
        raise click.UsageError(
            f'only the service {contract.owner!r} may say {name}: its contract has no "produced_by": "external"'
        )
    return contract


def _find_mistakes(line: bytes, to: type[Event], bytes_max: int) -> Iterator[str]:
    """Yield the problems of one line."""
    try:
        data, twice = _decode_line(line)
    except BadInput as why:
        yield str(why)
        return
    yield from (f"{name}: comes twice" for name in twice)
    try:
        to_value(codec.from_json(data, to), contract_of(to), bytes_max)
    except BadInput:
        yield from codec.find_json_problems(data, to)
    except SagaError as why:
        yield str(why)


def _decode_event(line: bytes, to: type[Event]) -> Event:
    """Decode the event in a line."""
    return codec.from_json(_decode_line(line)[0], to)


def _decode_line(line: bytes) -> tuple[object, list[str]]:
    """Decode the JSON of a line. Also return the names that occur twice in an object. Raises `BadInput` if the line is
    not JSON."""
    try:
        return read_json(line)
    except (ValueError, RecursionError) as why:  # a ValueError also for bytes that are not UTF-8
        raise BadInput(f"is no JSON: {why}") from None


async def _publish(lines: IO[bytes], to: type[Event], connecting: Client) -> int:
    """Publish all events and return their number. Exit with code 1 if the broker does not acknowledge a batch."""
    published = 0
    async with connecting as client:
        for batch in _read_batches(lines, to):
            try:
                await client.publish(*batch)
            except ConfigurationError:
                raise  # it is in the first batch, so nothing was published
            except SagaError as why:
                print_error(why)
                print_lines(
                    f"{published} events before these are durable; publish the same file again: an equal event is the "
                    "same event",
                    err=True,
                )
                sys.exit(1)
            published += len(batch)
    return published


def _read_batches(lines: IO[bytes], to: type[Event]) -> Iterator[list[Event]]:
    while batch := [_decode_event(line, to) for line in islice(lines, BATCH)]:
        yield batch


def _refuse(problems: list[LineProblem], wrong: int, contract: Contract, as_json: bool) -> None:
    if as_json:
        listed = [problem._asdict() for problem in problems]
        print_json({"event": contract.name, "published": 0, "wrong_lines": wrong, "problems": listed})
        return
    for line, what in problems[:PROBLEMS_SHOWN_MAX]:
        print_lines(f"line {line}: {what}", err=True)
    if len(problems) > PROBLEMS_SHOWN_MAX:
        print_lines(f"and {len(problems) - PROBLEMS_SHOWN_MAX} more problems: --json shows them", err=True)
    print_lines(f"nothing was published: {wrong} line{' is' if wrong == 1 else 's are'} wrong", err=True)
