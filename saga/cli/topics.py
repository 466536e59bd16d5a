"""`saga topics`: plan and create the topics of services, and print their records as they arrive."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict

import click

from saga.cli.options import broker_option, parse_since_ms
from saga.cli.printing import print_error, print_json, print_lines
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.errors import ConfigurationError
from saga.ops import topic_plans
from saga.ops.sources import missing_broker_file, open_administration
from saga.ops.tail import TailedRecord, find_contracts, resolve_target
from saga.ops.tail import tail as tailed
from saga.ops.topic_plans import TopicStep, collect_needs
from saga.support.clock import SystemClock

WORDS = {"create": "create", "retention": "change", "dates": "change", "partitions": "change", "nothing": "as it is"}
DONE = {"create": "created", "retention": "changed", "dates": "changed", "partitions": "changed", "nothing": "as it is"}


@click.group()
def topics() -> None:
    """Plan, create and read topics.

    The contracts define how many partitions each topic has and how long its records are kept (topic.json, beside the
    schemas). Dead letters, on <service>.dead, are kept for ever.

    \b
    Exit code 0: all topics are as defined, or can be made so.
    Exit code 1: a change is refused.
    Exit code 2: wrong usage, or the broker cannot be used.
    """


@topics.command("plan")
@click.argument("modules", nargs=-1, required=True)
@broker_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def plan_(modules: tuple[str, ...], broker: str | None, as_json: bool) -> None:
    """Print what `saga topics apply` would do, without doing it.

    For example `saga topics plan services.payment services.order`.

    \b
    Exit code 0: all changes can be made, or none is needed.
    Exit code 1: a change would be refused; its line says why.
    Exit code 2: wrong usage, or the broker cannot be used.
    """
    _print_result(asyncio.run(_plan_or_apply(modules, broker, apply=False)), as_json, applied=False)


@topics.command("apply")
@click.argument("modules", nargs=-1, required=True)
@broker_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def apply_(modules: tuple[str, ...], broker: str | None, as_json: bool) -> None:
    """Create and change topics so that they match the contracts. Running it again changes nothing.

    It creates missing topics, sets their retention, and has the broker set the time of each record. It adds partitions
    only while no client consumes or publishes there and all records are handled, because keys change their partition.
    It never removes any. Stop other programs that publish there yourself, because saga does not know about them.

    \b
    Exit code 0: all topics match the contracts.
    Exit code 1: a change is refused, its line says why; nothing was changed.
    Exit code 2: wrong usage, or the broker cannot be used.
    """
    steps = asyncio.run(_plan_or_apply(modules, broker, apply=True))
    _print_result(steps, as_json, applied=not any(step.refused for step in steps))


async def _plan_or_apply(modules: Sequence[str], address: str | None, *, apply: bool) -> list[TopicStep]:
    settings = Settings.from_environment(broker=address)
    wanted = collect_needs(wiring.load_services(modules), settings.transition_topic)
    if not apply and missing_broker_file(settings) is not None:  # opening the broker would create the file
        return topic_plans.plan([each.topic for each in wanted.values()], {}, {}, can_grow=False)
    async with open_administration(settings, SystemClock()) as broker:
        steps = await topic_plans.plan_topics(wanted, broker)
        if apply:
            await topic_plans.apply(steps, broker)
        return steps


def _print_result(steps: Sequence[TopicStep], as_json: bool, *, applied: bool) -> None:
    if as_json:
        rows = [
            {"topic": step.topic.name, "doing": step.doing, "says": step.says, "refused": step.refused}
            for step in steps
        ]
        print_json({"applied": applied, "topics": rows})
    else:
        _print_steps(steps, applied)
    if any(step.refused for step in steps):
        raise click.exceptions.Exit(1)


def _print_steps(steps: Sequence[TopicStep], applied: bool) -> None:
    width = max(len(step.topic.name) for step in steps)
    words = DONE if applied else WORDS
    for step in steps:
        word = "refused" if step.refused else words[step.doing]
        refused = f": {step.refused}" if step.refused else ""
        print_lines(f"{word:<8}  {step.topic.name:<{width}}  {step.says}{refused}")


# -------------------------------------------------------------------- tail


@click.command()
@click.argument("what", metavar="TOPIC|SAGA_ID")
@click.option("--since", metavar="TIME", help="Begin then: 90s, 30m, 2h, 3d ago, or 2026-11-22T16:00:00Z.")
@click.option(
    "--follow/--no-follow", default=True, help="Keep printing new records until Ctrl-C, or stop at the present end."
)
@click.option("--saga", "as_saga", is_flag=True, help="Treat the name as a saga id, even if a topic has that name.")
@broker_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text, one document per line.")
def tail(what: str, since: str | None, follow: bool, as_saga: bool, broker: str | None, as_json: bool) -> None:
    """Print the records of TOPIC, or of one saga in all topics, as they arrive.

    SAGA_ID selects that saga in the topics of all contracts. Each record is a line with the time at which it was
    appended, topic/partition/offset, saga, event, source and id. Below are its fields, decoded by the contracts folder
    for any version and encoding; sensitive fields are ***. If a record cannot be decoded, the reason is there instead;
    for a record on <service>.dead its kind and reason. Records are in order within each partition; an effect in another
    topic may come above its cause.

    \b
    saga topics tail payments --since 10m
    saga topics tail order-17 --no-follow

    Without --since it begins with new records; with --no-follow, or for a saga, with the oldest ones. It joins no
    consumer group and does not disturb services.

    \b
    Exit code 0: printed, or left with Ctrl-C.
    Exit code 1: with --no-follow: there is no such record.
    Exit code 2: there is neither such a topic nor contracts, or the broker cannot be read.
    """
    clock = SystemClock()
    begin_ms = None if since is None else parse_since_ms("--since", since, clock)
    settings = Settings.from_environment(broker=broker)
    if (file := missing_broker_file(settings)) is not None:
        raise ConfigurationError(
            "nothing to tail:", [f"the file {file} does not exist: nothing was published there yet"]
        )
    with suppress(KeyboardInterrupt):
        has_records = asyncio.run(
            _print_records(what, settings, begin_ms, follow, as_saga, print_record_as_json if as_json else print_record)
        )
        if not has_records:
            print_lines(f"there is no record of {what}", err=True)
            raise click.exceptions.Exit(1)


async def _print_records(
    name: str,
    settings: Settings,
    begin_ms: int | None,
    follow: bool,
    as_saga: bool,
    show: Callable[[TailedRecord], None],
) -> bool:
    """Print records until the end of the topics. Return whether there was one."""
    library, trouble = find_contracts()
    if library is None:
        print_error(f"no values are shown: {trouble}")
    has_records = False
    async with open_administration(settings, SystemClock()) as broker:
        what = await resolve_target(name, broker, library, as_saga=as_saga)
        if begin_ms is None and (what.saga is not None or not follow):
            begin_ms = 0
        async for seen in tailed(what, broker, library, print_error, since_ms=begin_ms, follow=follow):
            show(seen)
            has_records = True
    return has_records


def print_record_as_json(seen: TailedRecord) -> None:
    """Print a record as JSON."""
    print_json(asdict(seen))


def print_record(seen: TailedRecord) -> None:
    """Print a record as text, in one line or two."""
    place = f"{seen.topic}/{seen.partition}/{seen.offset}"
    event = f"{seen.type or '?'} from {seen.source or '?'}"
    lines = [
        f"{seen.time}  {place}  {seen.key if seen.key is not None else '(no key)'}  {event}  {seen.id or ''}".rstrip()
    ]
    if seen.fields is not None:
        lines.append(f"    {json.dumps(seen.fields, ensure_ascii=False)}")
    if seen.problem is not None:
        lines.append(f"    ({seen.problem})")
    print_lines(*lines)


topics.add_command(tail)
