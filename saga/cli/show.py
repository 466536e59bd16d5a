"""`saga show`: one saga as a timeline over all services, as it goes on, or as it was."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TypeAlias

import click
from msgspec import to_builtins

from saga.cli.keys import key_ring_of
from saga.cli.options import broker_option, check_said, read_stores_option
from saga.cli.printing import tell, tell_json, tell_trouble
from saga.configuration.settings import Settings
from saga.encryption.sensitive_fields import hidden
from saga.ops.event_fields import EventDecoder, EventFields, make_decoder, read_event_fields
from saga.ops.saga_details import SagaDetails, add_reasons, describe_open_work, follow_saga, read_saga
from saga.ops.timeline import SagaHistory, TimelineEntry, TimelineStep, find_transition
from saga.support.clock import SystemClock
from saga.support.printable import counted, quoted


@click.command()
@click.argument("saga_id")
@read_stores_option
@click.option("--follow", "-f", is_flag=True, help="Go on with what is new, as it comes, until Ctrl-C.")
@click.option("--transition", type=click.IntRange(0), metavar="N", help="The state when transition N was written.")
@click.option("--service", help="Only what this service has written down.")
@click.option("--steps", "with_steps", is_flag=True, help="With what is recorded of each step, update and read.")
@click.option("--values", "with_values", is_flag=True, help="With the fields of the events; sensitive ones hidden.")
@click.option("--reveal", is_flag=True, help="With --values: sensitive fields, too; it is noted in the book of keys.")
@click.option("--who", default="", help="With --reveal: your name, for the record.")
@click.option("--why", default="", help="With --reveal: your reason, for the record.")
@broker_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document; with --follow one for each transition.")
def show(  # an argument for each option of the command
    saga_id: str,
    addresses: tuple[str, ...],
    follow: bool,
    transition: int | None,
    service: str | None,
    with_steps: bool,
    with_values: bool,
    reveal: bool,
    who: str,
    why: str,
    broker: str | None,
    as_json: bool,
) -> None:
    """Show what happened in a saga, in all services, as one timeline.

    A line for each transition: when, service and number, handler, what became of the message and why, the message, the
    events that followed, and the steps that were taken; below it each attempt that failed. Lines are in order of time,
    but an effect never stands above its cause. At the end: what has not come to its end, and of what is tried again how
    often it failed, why, when it is tried again, and how much waits behind it. Of a compensation that fails it is asked
    in the log why: on the topics <service>.dead. Above it who began the saga, if that was said.

    --steps shows of each step, update and read: how long a step took, the digest of its arguments, the declared
    exception with which it answered, and how large what it gave is, or the document in saga-archive that holds it.

    --values shows each event that was emitted with its fields, read by contracts/; those that a contract calls
    sensitive are ***. With --reveal they are shown, and opened if they are sealed: that is noted in the book of keys
    (`saga keys book`) before anything is printed, so SAGA_KEYS has to be set.

    saga show order-17 --values --reveal --who ada --why "the bank asks which card it was"

    `--transition 3 --service payment` shows one transition, and the state as it was when it had been written.

    \b
    Exit code 0: shown.
    Exit code 1: no service knows the saga, or it has no such transition.
    Exit code 2: no store, one that cannot be read, or options that do not go together.
    """
    if follow and transition is not None:
        raise click.UsageError("--follow shows what comes, --transition what was: give one of them")
    if with_steps and follow:
        raise click.UsageError("--steps is for what was: leave --follow out, or take --json, which has them")
    if with_values and (follow or transition is not None):
        raise click.UsageError("--values is for the whole timeline: leave --follow and --transition out")
    if reveal and not with_values:
        raise click.UsageError("--reveal is for --values: give both")
    if reveal:
        check_said(who, why)
    if follow:
        with suppress(KeyboardInterrupt):
            asyncio.run(_follow(saga_id, addresses, service, as_json))
        return
    clock = SystemClock()
    settings = Settings.from_environment(broker=broker) if broker else None
    seen = asyncio.run(read_saga(saga_id, addresses, clock, tell_trouble, service, settings=settings))
    if not seen.histories:
        where = f"{service} does not know" if service else "no service knows"
        tell(f"{where} saga {saga_id}; `saga list` shows those that are known", err=True)
        sys.exit(1)
    if transition is not None:
        _tell_transition(_only(seen), transition, as_json, with_steps)
        return
    opens = asyncio.run(_revealed(saga_id, seen, who, why)) if reveal else None
    values = {h.service: read_event_fields(h, opens) for h in seen.histories} if with_values else None
    if seen.undoing:  # only then the log is read
        settings = Settings.from_environment(broker=broker)
        seen = asyncio.run(add_reasons(saga_id, seen, settings, clock, tell_trouble))
    if as_json:
        tell_json(_as_json(saga_id, seen, values))
        return
    tell(*_heading(saga_id, seen, service), "", *_table(seen.entries, values, with_steps), *_left(seen))


async def _revealed(saga: str, seen: SagaDetails, who: str, why: str) -> EventDecoder:
    """Opener of the saga's events, once it is on record that somebody is to see what they hold."""
    ring = key_ring_of(Settings.from_environment())
    opens = await make_decoder(seen.histories, ring)
    ring.note("reveal", saga, who, why)
    return opens


async def _follow(saga: str, addresses: Sequence[str], service: str | None, as_json: bool) -> None:
    async for lines in follow_saga(saga, addresses, SystemClock(), tell_trouble, service):
        for line in lines:
            tell(*([json.dumps(asdict(line))] if as_json else [_row(line), *_attempts(line)]))


def _only(seen: SagaDetails) -> SagaHistory:
    """The service that is meant."""
    first, *others = seen.histories
    if others:
        names = ", ".join(h.service for h in seen.histories)
        raise click.UsageError(f"each service counts its own transitions: name one of {names} with --service")
    return first


def _tell_transition(history: SagaHistory, n: int, as_json: bool, with_steps: bool) -> None:
    """Print the transition and the state then; exit code 1 if there is none."""
    try:
        line, state = find_transition(history, n)
    except LookupError:
        tell(
            f"{history.service} has no transition {n} of saga {history.progress.saga}: it has 0 to "
            f"{history.progress.n - 1}",
            err=True,
        )
        sys.exit(1)
    if as_json:
        tell_json({"saga": history.progress.saga, **asdict(line), "state": state})
        return
    version = f", version {line.version}" if line.version > 1 else ""
    told = f"state after transition {n}{version}: {json.dumps(state, indent=2, ensure_ascii=False)}"
    tell(_row(line), *(map(_call, line.calls) if with_steps else ()), "", *told.split("\n"))


Values: TypeAlias = Mapping[str, Mapping[int, Sequence[EventFields]]]
"""Events with their fields, by service and transition."""


def _as_json(saga: str, seen: SagaDetails, values: Values | None) -> dict[str, object]:
    return {
        "saga": saga,
        "services": {
            s.service: {
                **asdict(s),
                "transitions": h.progress.n,
                "fields": hidden(h.progress.state),
            }
            for h, s in zip(seen.histories, seen.statuses, strict=True)
        },
        "timeline": [
            asdict(line)
            if values is None
            else {**asdict(line), "values": list(map(to_builtins, values[line.service].get(line.transition, ())))}
            for line in seen.entries
        ],
        "failing": dict(seen.failing),
    }


def _heading(saga: str, seen: SagaDetails, service: str | None) -> list[str]:
    outcome = next((s.outcome for s in seen.statuses if s.outcome), None)
    if service is not None:  # the outcome may stand in another one
        return [f"saga {saga} in {service}"]
    ended = f"ended with {outcome}" if outcome else "no outcome yet"
    if principals := dict.fromkeys(s.principal for s in seen.statuses if s.principal):
        ended += f"; begun by {' and '.join(map(quoted, principals))}"
    return [f"saga {saga}: {ended}; known to {', '.join(map(_named, seen.histories))}"]


def _named(history: SagaHistory) -> str:
    """The service; with the version of its state, where that is not the first."""
    version = history.progress.version
    return f"{history.service} (state version {version})" if version > 1 else history.service


def _table(lines: Sequence[TimelineEntry], values: Values | None, with_steps: bool) -> list[str]:
    widths = [max((len(cell(line)) for line in lines), default=0) for cell in _CELLS]
    table = []
    for line in lines:
        table += [_row(line, widths), *_attempts(line), *(map(_call, line.calls) if with_steps else ())]
        for said in values[line.service].get(line.transition, ()) if values is not None else ():
            fields = said.problem if said.fields is None else json.dumps(said.fields, ensure_ascii=False)
            table.append(f"    {said.type} {fields}")
    return table


def _row(line: TimelineEntry, widths: Sequence[int] = (24, 14, 14, 11)) -> str:
    cells = "  ".join(f"{cell(line):<{width}}" for cell, width in zip(_CELLS, widths, strict=True))
    return f"{cells}  {_story(line)}"


def _attempts(line: TimelineEntry) -> list[str]:
    """Attempts that failed before the transition, or in it, a line each."""
    return [
        f"    attempt {each.attempt} failed at {each.time} after {each.ms} ms"
        + (f" on {each.worker}" if each.worker else "")
        + f": {each.reason}"
        for each in line.failures
    ]


def _call(made: TimelineStep) -> str:
    """A step, update or read in words."""
    what = f"{made.kind} {made.name}" + (f"({made.arguments})" if made.arguments else "")
    what += f" {made.number}" if made.number > 1 else ""
    what += f" of {made.document}" if made.kind == "update" else ""
    gave = f"gave {made.claim} in saga-archive" if made.claim else f"gave {counted(made.bytes, 'byte')}"
    if made.answer:
        gave = f"answered {made.answer}"
    said = f", as {made.by} says" if made.by else f", by {made.instead}" if made.instead else ""
    return f"    {what}: {f'{made.ms} ms, ' if made.kind == 'step' else ''}input {made.input}, {gave}{said}"


_CELLS: tuple[Callable[[TimelineEntry], str], ...] = (
    lambda line: line.time,
    lambda line: f"{line.service} {line.transition}",
    lambda line: line.handler,
    lambda line: line.outcome,
)


def _story(line: TimelineEntry) -> str:
    """The message and what the service did with it."""
    story = line.type + (f" -> {', '.join(line.emitted)}" if line.emitted else "")
    if line.steps:
        story += f"  [{', '.join(line.steps)}]"
    if line.attempt > 1:
        story += f"  attempt {line.attempt}"
    return story + (f"  ({line.reason})" if line.reason else "")


def _left(seen: SagaDetails) -> list[str]:
    """Everything that has not come to its end, a line each."""
    left = [
        f"  {status.service}: {what}"
        for history, status in zip(seen.histories, seen.statuses, strict=True)
        for what in describe_open_work(history.progress, status, seen.failing)
    ]
    return ["", "still open:", *left] if left else []
