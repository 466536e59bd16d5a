"""`saga topics tail`: the records of a topic, or of one saga in all topics, as they come."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

import click

from saga.cli.options import broker_option, since_ms
from saga.cli.printing import tell, tell_json, tell_trouble
from saga.configuration.settings import Settings
from saga.errors import ConfigurationError
from saga.ops.sources import missing_broker_file, open_administration
from saga.ops.tail import TailedRecord, find_contracts, resolve_target
from saga.ops.tail import tail as tailed
from saga.support.clock import SystemClock


@click.command()
@click.argument("what", metavar="TOPIC|SAGA_ID")
@click.option("--since", metavar="TIME", help="From then on: 90s, 30m, 2h, 3d ago, or 2026-11-22T16:00:00Z.")
@click.option(
    "--follow/--no-follow", default=True, help="Go on with what comes, until Ctrl-C; or end with what is there."
)
@click.option("--saga", "as_saga", is_flag=True, help="It is a saga's id, even if a topic is called so.")
@broker_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line, instead of text.")
def tail(what: str, since: str | None, follow: bool, as_saga: bool, broker: str | None, as_json: bool) -> None:
    """Print the records of TOPIC, or of one saga in all topics, as they come.

    SAGA_ID means that saga, in the topics of all contracts. A line for each record: when the log took it,
    topic/partition/offset, the saga, the event and who said it, its id; and below it its fields, read by contracts/, of
    whichever version and form. What a contract calls sensitive is ***, and what cannot be read says why. Of letters
    (<service>.dead) it is what they say. A topic is printed in the order of each partition, a saga in the order of each
    topic: an effect in another topic may stand above its cause.

    \b
    saga topics tail payments --since 10m
    saga topics tail order-17 --no-follow

    Without --since it is what comes from now on; with --no-follow, or of a saga, all that is there. It reads as nobody:
    no group comes into being, and no service notices.

    \b
    Exit code 0: printed, or left with Ctrl-C.
    Exit code 1: with --no-follow: there is no such record.
    Exit code 2: neither a topic nor contracts, or the broker cannot be read.
    """
    clock = SystemClock()
    begin_ms = None if since is None else since_ms("--since", since, clock)
    settings = Settings.from_environment(broker=broker)
    if (file := missing_broker_file(settings)) is not None:
        raise ConfigurationError("nothing to tail:", [f"there is no file {file}: nothing was published there yet"])
    with suppress(KeyboardInterrupt):
        said = asyncio.run(_tail(what, settings, begin_ms, follow, as_saga, tell_one_json if as_json else tell_one))
        if not said:
            tell(f"no record of {what} is there", err=True)
            raise click.exceptions.Exit(1)


async def _tail(
    name: str,
    settings: Settings,
    begin_ms: int | None,
    follow: bool,
    as_saga: bool,
    show: Callable[[TailedRecord], None],
) -> bool:
    """Print until the end; true if there was anything."""
    library, trouble = find_contracts()
    if library is None:
        tell_trouble(f"no values are shown: {trouble}")
    said = False
    async with open_administration(settings, SystemClock()) as broker:
        what = await resolve_target(name, broker, library, as_saga=as_saga)
        if begin_ms is None and (what.saga is not None or not follow):
            begin_ms = 0
        async for seen in tailed(what, broker, library, tell_trouble, since_ms=begin_ms, follow=follow):
            show(seen)
            said = True
    return said


def tell_one_json(seen: TailedRecord) -> None:
    """Print a record as JSON."""
    tell_json(asdict(seen))


def tell_one(seen: TailedRecord) -> None:
    """Print a record for people, in one line or two."""
    place = f"{seen.topic}/{seen.partition}/{seen.offset}"
    said = f"{seen.type or '?'} from {seen.source or '?'}"
    lines = [
        f"{seen.time}  {place}  {seen.key if seen.key is not None else '(no key)'}  {said}  {seen.id or ''}".rstrip()
    ]
    if seen.fields is not None:
        lines.append(f"    {json.dumps(seen.fields, ensure_ascii=False)}")
    if seen.problem is not None:
        lines.append(f"    ({seen.problem})")
    tell(*lines)
