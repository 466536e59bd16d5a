"""`saga offsets`: show, reset, skip and delete the consumer offsets of services."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import click

from saga.cli.options import broker_option, pack_options, record_options
from saga.cli.printing import print_json, print_lines
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.messages import Partition
from saga.messaging.names import dead_letter_topic
from saga.ops.offsets import (
    OffsetMove,
    OffsetReset,
    OffsetResult,
    OffsetSkip,
    ServiceOffsets,
    check_topic_is_read,
    delete_group,
    read_offsets,
    reset_offsets,
    skip_unreadable,
)
from saga.ops.selection import Operator
from saga.support.clock import SystemClock
from saga.support.printable import count_noun


@click.group()
def offsets() -> None:
    """Show, reset, skip and delete the consumer offsets of services.

    A service's position in a partition is the offset of the first record that it has not handled.

    \b
    Exit code 0: shown, or moved.
    Exit code 1: the service is not known, or the move is refused.
    Exit code 2: wrong usage, or the broker cannot be used.
    """


# -------------------------------------------------------------------- show


@offsets.command()
@click.argument("services", nargs=-1, required=True)
@broker_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def show(services: tuple[str, ...], broker: str | None, as_json: bool) -> None:
    """Show members, positions and lag of SERVICES, which are given by name.

    The lag is the number of records that a service has not handled. Timers, which stay on the topics
    <service>.wake.<tier> until their time, are counted separately.

    For example `saga offsets show payment order`.

    \b
    Exit code 0: shown.
    Exit code 1: a service has never read anything here.
    Exit code 2: wrong usage, or the broker cannot be used.
    """
    shown = asyncio.run(read_offsets(services, Settings.from_environment(broker=broker), SystemClock()))
    unknown = [each.service for each in shown if not each.is_known]
    if as_json:
        print_json({"services": [_as_json(each) for each in shown]})
    else:
        for each in shown:
            if each.service not in unknown:
                print_lines(*_table(each))
    for service in unknown:
        print_lines(f"no service {service} has ever read anything here: check the name", err=True)
    if unknown:
        raise click.exceptions.Exit(1)


def _table(shown: ServiceOffsets) -> list[str]:
    heading = f"{shown.service}: {count_noun(len(shown.members), 'member')}, {shown.lag} not handled"
    heading += f", {count_noun(shown.timers, 'timer')} pending" if shown.timers else ""
    rows = [("TOPIC", "PARTITION", "POSITION", "END", "LAG")]
    for (topic, number), state in shown.states.items():
        at = "-" if state.offset is None else str(state.offset)
        rows.append((topic, str(number), at, str(state.bounds.end), str(state.lag)))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    table = ["  ".join([f"{row[0]:<{widths[0]}}", *(f"{row[i]:>{widths[i]}}" for i in range(1, 5))]) for row in rows]
    return [heading, *(f"  member {member}" for member in shown.members), *table]


def _as_json(shown: ServiceOffsets) -> dict[str, object]:
    return {
        "service": shown.service,
        "members": list(shown.members),
        "lag": shown.lag,
        "wakes": shown.timers,
        "partitions": [
            {
                "topic": topic,
                "partition": number,
                "position": state.offset,
                "begin": state.bounds.begin,
                "end": state.bounds.end,
                "lag": state.lag,
            }
            for (topic, number), state in shown.states.items()
        ],
    }


# -------------------------------------------------------------------- move


@dataclass(frozen=True, slots=True)
class _Target:
    """The partitions to move, and the offset to which they are moved."""

    topic: str
    partition: int | None
    to: str
    module: str | None


@offsets.command()
@click.argument("service")
@pack_options(
    "target",
    _Target,
    click.option("--topic", required=True, help="Topic in which offsets move."),
    click.option("--partition", type=click.IntRange(0), help="Only in this partition."),
    click.option(
        "--to", required=True, metavar="WHERE", help="earliest, latest, an offset, or a time with a time zone."
    ),
    click.option("--module", help="Module that declares the service, for example services.payment. Needed to go back."),
)
@record_options
@broker_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def reset(service: str, target: _Target, operator: Operator, broker: str | None, as_json: bool) -> None:
    """Move the positions of SERVICE in a topic, while none of its processes runs.

    \b
    saga offsets reset payment --module services.payment --topic orders \\
        --to 2026-11-21T08:00:00Z --who ada --why "store restored from the copy of 8:00"

    Messages that were handled and come again are ignored while the service remembers their saga (retention=). So going
    back further than that is refused, and --module is needed to find out how long that is. Going forward over records
    that are not handled is refused: their sagas would be stuck for ever. All partitions move, or none.

    The move is recorded on <service>.dead, with who and why, before it is done.

    \b
    Exit code 0: moved, or already there.
    Exit code 1: refused; nothing was moved.
    Exit code 2: wrong usage, or the broker cannot be used.
    """
    request = OffsetReset(
        service=service,
        topic=target.topic,
        partition=target.partition,
        to=target.to,
        retention_ms=None if target.module is None else _retention_ms(service, target.module, target.topic),
        operator=operator,
    )
    answer = asyncio.run(reset_offsets(request, Settings.from_environment(broker=broker), SystemClock()))
    if as_json:
        print_json(_answer_as_json(service, answer))
    elif not answer.refused:
        _print(service, answer.moves)
    _print_refused(answer)


# -------------------------------------------------------------------- delete


@offsets.command()
@click.argument("service")
@broker_option
def delete(service: str, broker: str | None) -> None:
    """Delete the consumer offsets of SERVICE, which is removed for good: no records are kept for it any more.

    Only for broker files: Kafka deletes such offsets by itself. If the service returns, it begins at the oldest record.

    \b
    Exit code 0: deleted.
    Exit code 1: the service is not known, or refused, because one of its processes runs.
    Exit code 2: wrong usage, or the broker cannot be used.
    """
    was, refused = asyncio.run(delete_group(service, Settings.from_environment(broker=broker), SystemClock()))
    if refused is not None:
        print_lines(refused, err=True)
        raise click.exceptions.Exit(1)
    print_lines(f"the offsets of {service} are deleted; it had not handled {count_noun(was.lag, 'record')}")


# -------------------------------------------------------------------- skip


@offsets.command()
@click.argument("service")
@click.option("--topic", required=True, help="Topic of the stalled partition.")
@click.option("--partition", type=click.IntRange(0), required=True, help="Number of the stalled partition.")
@record_options
@broker_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def skip(service: str, topic: str, partition: int, operator: Operator, broker: str | None, as_json: bool) -> None:
    """Skip unreadable records at which SERVICE is stalled, while none of its processes runs.

    \b
    saga offsets skip payment --topic orders --partition 3 --who ada --why "lost with disk 2; customers are informed"

    The service loses the content of the skipped records, so restore the topic's data if you can. Only unreadable
    records are skipped: if the next record can be read, the command is refused.

    The skip is recorded on <service>.dead, with who and why and all that is known of the records, before it is done.

    \b
    Exit code 0: skipped.
    Exit code 1: refused; nothing was moved.
    Exit code 2: wrong usage, or the broker cannot be used.
    """
    request = OffsetSkip(service=service, partition=Partition(topic, partition), operator=operator)
    answer, unreadable = asyncio.run(skip_unreadable(request, Settings.from_environment(broker=broker), SystemClock()))
    if as_json:
        known = None if unreadable is None else unreadable._asdict()
        print_json({**_answer_as_json(service, answer), "unreadable": known})
    elif unreadable is not None:
        print_lines(f"{topic}/{partition}  skipped {unreadable}")
        _print(service, answer.moves)
    _print_refused(answer)


def _print_refused(answer: OffsetResult) -> None:
    for each, reason in answer.refused.items():
        print_lines(f"{each.topic}/{each.number} cannot move: {reason}", err=True)
    if answer.refused:
        raise click.exceptions.Exit(1)


def _retention_ms(service: str, module: str, topic: str) -> int:
    """Return the retention of a service that a module declares. Raises `ConfigurationError` if it does not read the
    topic."""
    found = {declared.name: declared for declared in wiring.load_services([module])}
    if service not in found:
        raise click.UsageError(f"{module} declares {', '.join(found)}, and no service {service}")
    check_topic_is_read(found[service], topic)
    return int(found[service].retention.total_seconds() * 1000)


def _print(service: str, done: Sequence[OffsetMove]) -> None:
    for (topic, number), from_, to in done:
        print_lines(f"{topic}/{number}  {'the beginning' if from_ is None else from_} -> {to}")
    if done:
        print_lines(f"recorded on {dead_letter_topic(service)}")
    else:
        print_lines(f"{service} is there already; nothing was moved")


def _answer_as_json(service: str, answer: OffsetResult) -> dict[str, object]:
    return {
        "service": service,
        "moved": [{"topic": p.topic, "partition": p.number, "from": from_, "to": to} for p, from_, to in answer.moves],
        "refused": [{"topic": p.topic, "partition": p.number, "why": why} for p, why in answer.refused.items()],
    }
