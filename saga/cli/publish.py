"""`saga publish`: events from lines of JSON, all of them checked before the first one is published."""

import asyncio
import json
import sys
import types
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import IO, NamedTuple, Never

import click

from saga.cli.telling import tell, tell_json, tell_trouble
from saga.client import Client
from saga.contracts import codec
from saga.contracts.codegen import generate
from saga.contracts.contract import Contract
from saga.contracts.library import Library, find
from saga.errors import BadInput, ConfigurationError, SagaError
from saga.messages import Event

BATCH = 500
"""How many events are published at once."""
LINE_BYTES_MAX = 1_000_000
"""A longer line is refused: brokers refuse such messages as well."""
SPOOL_BYTES_MAX = 32_000_000
"""What is read waits in memory up to here, beyond it on disk, until all of it is checked."""
PROBLEMS_SHOWN_MAX = 20


class Problem(NamedTuple):
    """What is wrong with a line."""

    line: int
    what: str
    """Names the field."""


@click.command()
@click.argument("event")
@click.option("--file", "file", type=click.File("rb"), default="-", help="Where the lines are, instead of stdin.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def publish(event: str, file: IO[bytes], as_json: bool) -> None:
    """Publish EVENT once for each line of JSON.

    For example `saga publish OrderPlaced < orders.jsonl`. EVENT is the name of a contract with "said": "outside", in
    its newest version; contracts/ is looked for from the current folder on upwards. A line is an object with the
    event's fields: decimals, dates, times and UUIDs are text, bytes are base64, a field with a default may be missing.

    All lines are checked first: of a file with a wrong line nothing is published. An equal event is the same event,
    however often it is published: if this command is interrupted, call it again with the same file.

    \b
    Exit code 0: all events are durable in the broker.
    Exit code 1: a line is wrong (nothing was published), or the broker did not acknowledge everything.
    Exit code 2: no such contract, the broker cannot be reached, or the topic is not there (`saga topics apply`).
    """
    library = find()
    contract = _contract_named(event, library)
    to = event_class(contract, library)
    with SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX) as spool:
        problems = check(file, to, contract.key, spool)
        if problems:
            _refuse(problems, contract, as_json)
            sys.exit(1)
        spool.seek(0)
        published = asyncio.run(_publish(spool, to))
    if as_json:
        tell_json({"event": contract.name, "topic": contract.topic, "published": published})
    else:
        tell(f"{published} {contract.name} published to {contract.topic}")


def check(lines: IO[bytes], to: type[Event], key: str, spool: IO[bytes]) -> list[Problem]:
    """All that is wrong with the lines; those that are not empty are copied to `spool`."""
    problems = []
    for number, line in enumerate(iter(lambda: lines.readline(LINE_BYTES_MAX + 1), b""), start=1):
        if len(line) > LINE_BYTES_MAX:
            problems.append(Problem(number, f"is longer than {LINE_BYTES_MAX} bytes; nothing behind it was looked at"))
            break
        if not line.strip():
            continue
        try:
            if not str(getattr(_event(line, to), key)):
                problems.append(Problem(number, f"{to.__name__}: {key}: is empty, and it is the saga id"))
        except BadInput as why:
            problems.append(Problem(number, str(why)))
        spool.write(line if line.endswith(b"\n") else line + b"\n")
    return problems


def event_class(contract: Contract, library: Library) -> type[Event]:
    """The class of a contract's newest version, made in memory as `saga contracts generate` would write it."""
    module = types.ModuleType(f"saga.generated.{contract.name}")
    # What belongs to a class is found from its module, and the library from the module's file.
    module.__file__ = str(library.folder.parent / f"{contract.name}.py")
    sys.modules[module.__name__] = module
    exec(compile(generate(library, [contract.name]), module.__file__, "exec"), module.__dict__)
    made = getattr(module, contract.name)
    assert isinstance(made, type)
    assert issubclass(made, Event)
    return made


def _contract_named(name: str, library: Library) -> Contract:
    contract = library.contracts.get(name)
    if contract is None:
        close = get_close_matches(name, library.contracts, n=1)
        hint = f"is it {close[0]}?" if close else f"there are {', '.join(sorted(library.contracts))}"
        raise click.UsageError(f"{name} is no contract in {library.folder}; {hint}")
    if not contract.said_outside:
        raise click.UsageError(
            f'only the service {contract.owner!r} may say {name}: its contract has no "said": "outside"'
        )
    return contract


def _event(line: bytes, to: type[Event]) -> Event:
    """The event that a line says. Raises `BadInput` naming the field."""
    try:
        data = json.loads(line, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as why:  # a ValueError also for bytes that are no UTF-8
        raise BadInput(f"is no JSON: {why}") from None
    return codec.from_json(data, to)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object in which no name comes twice: JSON lets the last one win, and nobody notices."""
    read = dict(pairs)
    if len(read) < len(pairs):
        names = [name for name, _ in pairs]
        raise BadInput(f"{next(n for n in names if names.count(n) > 1)}: comes twice")
    return read


def _no_constant(constant: str) -> Never:
    raise ValueError(f"{constant} is no number in JSON")


async def _publish(lines: IO[bytes], to: type[Event]) -> int:
    """Publish all; how many. Ends the command with exit code 1 when the broker stops to acknowledge."""
    published = 0
    async with Client() as client:
        for batch in _batches(lines, to):
            try:
                await client.publish(*batch)
            except ConfigurationError:
                raise  # of the first batch: nothing was published
            except SagaError as why:
                tell_trouble(why)
                tell(
                    f"{published} events before these are durable; publish the same file again: an equal event is the "
                    "same event",
                    err=True,
                )
                sys.exit(1)
            published += len(batch)
    return published


def _batches(lines: IO[bytes], to: type[Event]) -> Iterator[list[Event]]:
    while batch := [_event(line, to) for line in islice(lines, BATCH)]:
        yield batch


def _refuse(problems: list[Problem], contract: Contract, as_json: bool) -> None:
    if as_json:
        told = [problem._asdict() for problem in problems]
        tell_json({"event": contract.name, "published": 0, "problems": told})
        return
    for line, what in problems[:PROBLEMS_SHOWN_MAX]:
        tell(f"line {line}: {what}", err=True)
    if len(problems) > PROBLEMS_SHOWN_MAX:
        tell(f"and {len(problems) - PROBLEMS_SHOWN_MAX} more lines: --json shows all", err=True)
    tell(f"nothing was published: {len(problems)} lines are wrong", err=True)
