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

    The contracts say of each topic how many partitions it has and how long its records are kept (topic.json, beside the
    schemas). Dead letters, on <service>.dead, are kept for ever.

    \b
    Exit code 0: all topics are so, or can be made so.
    Exit code 1: something is refused.
    Exit code 2: asked wrongly, or the broker cannot be used.
    """


@topics.command("plan")
@click.argument("modules", nargs=-1, required=True)
@broker_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def plan_(modules: tuple[str, ...], broker: str | None, as_json: bool) -> None:
    """Tell what `saga topics apply` would do, and do nothing.

    For example `saga topics plan services.payment services.order`.

    \b
    Exit code 0: told; it can be done, or all is as wanted.
    Exit code 1: something of it would be refused; each line says why.
    Exit code 2: asked wrongly, or the broker cannot be used.
    """
    _print_result(asyncio.run(_plan_or_apply(modules, broker, apply=False)), as_json, applied=False)


@topics.command("apply")
@click.argument("modules", nargs=-1, required=True)
@broker_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def apply_(modules: tuple[str, ...], broker: str | None, as_json: bool) -> None:
    """Make the topics as the contracts want them. Again and again, at any time: what is so stays so.

    Missing topics are made, records are kept for as long as the contracts say, and the broker dates them. More
    partitions are given only while nobody reads or publishes there and everything has been handled, because keys change
    their partition; fewer never. Stop other programs that publish there yourself: nobody knows of them.

    \b
    Exit code 0: all topics are as the contracts want them.
    Exit code 1: something is refused, each line says why; nothing was changed.
    Exit code 2: asked wrongly, or the broker cannot be used.
    """
    steps = asyncio.run(_plan_or_apply(modules, broker, apply=True))
    _print_result(steps, as_json, applied=not any(step.refused for step in steps))


async def _plan_or_apply(modules: Sequence[str], address: str | None, *, apply: bool) -> list[TopicStep]:
    settings = Settings.from_environment(broker=address)
    wanted = collect_needs(wiring.load_services(modules), settings.told)
    if not apply and missing_broker_file(settings) is not None:  # to ask it would make it
        return topic_plans.plan([each.topic for each in wanted.values()], {}, {}, can_grow=False)
    async with open_administration(settings, SystemClock()) as broker:
        steps = await topic_plans.plan_topics(wanted, broker)
        if apply:
            await topic_plans.apply(steps, broker)
        return steps


def _print_result(steps: Sequence[TopicStep], as_json: bool, *, applied: bool) -> None:
    if as_json:
        told = [
            {"topic": step.topic.name, "doing": step.doing, "says": step.says, "refused": step.refused}
            for step in steps
        ]
        print_json({"applied": applied, "topics": told})
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
@click.option("--since", metavar="TIME", help="From then on: 90s, 30m, 2h, 3d ago, or 2026-11-22T16:00:00Z.")
@click.option(
    "--follow/--no-follow", default=True, help="Go on with what comes, until Ctrl-C; or end with what is there."
)
@click.option("--saga", "as_saga", is_flag=True, help="It is a saga's id, even if a topic is called so.")
@broker_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line, instead of text.")
def tail(what: str, since: str | None, follow: bool, as_saga: bool, broker: str | None, as_json: bool) -> None:
    """Print the records of TOPIC, or of one saga in all topics, as they come.

    SAGA_ID means that saga, in the topics of all contracts. A line for each record: when it was appended,
    topic/partition/offset, the saga, the event and its source, its id; and below it its fields, read by contracts/, of
    whichever version and form. What a contract calls sensitive is ***, and what cannot be read says why. Of letters
    (<service>.dead) it is what they say. A topic is printed in the order of each partition, a saga in the order of each
    topic: an effect in another topic may stand above its cause.

    \b
    saga topics tail payments --since 10m
    saga topics tail order-17 --no-follow

    Without --since it is what comes from now on; with --no-follow, or of a saga, all that is there. It joins no
    consumer group, and no service notices.

    \b
    Exit code 0: printed, or left with Ctrl-C.
    Exit code 1: with --no-follow: there is no such record.
    Exit code 2: neither a topic nor contracts, or the broker cannot be read.
    """
    clock = SystemClock()
    begin_ms = None if since is None else parse_since_ms("--since", since, clock)
    settings = Settings.from_environment(broker=broker)
    if (file := missing_broker_file(settings)) is not None:
        raise ConfigurationError("nothing to tail:", [f"there is no file {file}: nothing was published there yet"])
    with suppress(KeyboardInterrupt):
        said = asyncio.run(
            _print_records(what, settings, begin_ms, follow, as_saga, print_record_as_json if as_json else print_record)
        )
        if not said:
            print_lines(f"no record of {what} is there", err=True)
            raise click.exceptions.Exit(1)


async def _print_records(
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
        print_error(f"no values are shown: {trouble}")
    said = False
    async with open_administration(settings, SystemClock()) as broker:
        what = await resolve_target(name, broker, library, as_saga=as_saga)
        if begin_ms is None and (what.saga is not None or not follow):
            begin_ms = 0
        async for seen in tailed(what, broker, library, print_error, since_ms=begin_ms, follow=follow):
            show(seen)
            said = True
    return said


def print_record_as_json(seen: TailedRecord) -> None:
    """Print a record as JSON."""
    print_json(asdict(seen))


def print_record(seen: TailedRecord) -> None:
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
    print_lines(*lines)


topics.add_command(tail)
