"""`saga sagas`: list sagas, show one as a timeline, verify recorded histories, repair and rebuild sagas."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import click
from msgspec import to_builtins

from saga.cli.keys import key_ring_of
from saga.cli.listing import (
    SAGA_HEADING,
    SAGA_WIDTHS,
    format_row,
    format_saga_cells,
    listed_saga_to_json,
    print_attention,
)
from saga.cli.main import Commands, LazyGroup
from saga.cli.options import (
    broker_option,
    deployment_options,
    limit_option,
    pack_options,
    parse_duration_s,
    prefix_option,
    require_audit_fields,
    selection_options,
    services_option,
    stores_option,
)
from saga.cli.printing import print_error, print_json, print_lines
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.contracts.library import find_library
from saga.declarations.values import Declared
from saga.encryption.sensitive_fields import hide_marked
from saga.errors import SagaError
from saga.messaging.names import TRANSITIONS
from saga.ops import repair as repairing
from saga.ops.event_fields import EventDecoder, EventFields, make_decoder, read_event_fields
from saga.ops.histories import SagaHistory, TimelineEntry, TimelineStep, find_transition
from saga.ops.history_verifier import VerificationReport, read_published_histories, verify_histories
from saga.ops.repair import RebuiltSaga, RepairedSaga
from saga.ops.sagas import (
    ListedSaga,
    SagaDetails,
    add_reasons,
    follow_saga,
    list_open_work,
    list_sagas,
    read_saga,
    wait_for_end,
)
from saga.ops.selection import Deployment, Operator, Selection
from saga.support.clock import SystemClock
from saga.support.printable import count_noun, quote_text
from saga.telemetry.logs import EventLog

BROKEN_SHOWN_MAX = 50
SAGAS: Commands = {
    "list": ("saga.cli.sagas:list_command", "List sagas, newest first."),
    "show": ("saga.cli.sagas:show", "Show one saga in all services as a timeline."),
    "verify": ("saga.cli.sagas:verify", "Check that recorded histories are unchanged and complete."),
    "repair": ("saga.cli.sagas:repair", "Resume sagas that have ready work but nothing that triggers it."),
    "rebuild": ("saga.cli.sagas:rebuild", "Rebuild lost progress documents from the topics."),
}


@click.group(cls=LazyGroup, commands=SAGAS)
def sagas() -> None:
    """List, show, verify, repair and rebuild sagas.

    \b
    Exit code 0: yes, or done.
    Exit code 1: the answer is no, or a saga has a problem; its line says which.
    Exit code 2: wrong usage, no store, or one that cannot be read; standard error says what to do.
    """


@click.command("list")
@deployment_options
@click.option("--open", "only_open", is_flag=True, help="Only sagas with unfinished work.")
@click.option(
    "--dead",
    "only_dead",
    is_flag=True,
    help="List what needs a person instead: dead letters, escalations, failing runs.",
)
@selection_options(
    prefix_option,
    services_option,
    click.option("--principal", metavar="TEXT", help="Only sagas that this principal started, for example user:4711."),
    limit_option(50),
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def list_command(deployment: Deployment, selection: Selection, only_open: bool, only_dead: bool, as_json: bool) -> None:
    """List sagas, newest first.

    For each saga: KIND, the type of the message that started it; its STATE; the event with which it ended, if it has;
    when it started and last changed; how much is open in all services; and its state in each service that knows it.

    \b
    dead          a dead letter blocks it: `saga dead show ID`
    damaged       the progress of a service cannot be read
    failing       a run waits for its next attempt, and fails because of the service's own code
    retrying      a run has failed, and waits for its next attempt
    open          something is unfinished; with an outcome: something is still to be done after it
    ended         it has an outcome, and nothing is unfinished
    idle          it has no outcome, and nothing is unfinished: `saga explain ID` says why it does not go on

    In SERVICES one word says what the service did with the last message:

    \b
    handled, ignored, waiting, queued, compensated  what was done with the last message
    later         a handler continues at another time
    begun         a handler is running
    retrying      a run has failed, and waits for its next attempt
    quarantined   a dead letter blocks it
    damaged       the service's progress of it cannot be read

    In OPEN, `parked` are runs that wait for their next attempt, `deadlines` are handlers that run at a set time,
    `later` are runs that continue later, and `queue` are messages behind a parked run or a dead letter. --json says for
    each handler how often it failed, why, since when, and when it is retried. `unstarted` are messages, failures of the
    saga among them, that wait for a message with the start of the saga. If the service has forgotten the saga, they
    wait for ever.

    A message of a fan-in counts as open, except in two cases. First, if its handler can never run, because the handler
    is closed, has already run, or emits outcomes and the saga has ended in this service. Second, if the saga has an
    outcome or a failure that some service knows, nothing else is open in any service, and no service has written
    anything for an hour.

    With --dead: everything that the services published on their topics <service>.dead, and what blocks a saga in their
    stores, each with its reason and its state: dead letters, escalations (a compensation that fails, or something that
    it cannot undo), and messages that could not be read or came too late. It reads these topics from their beginning.

    If a store knows the order in which its documents were written, as SQLite does, only as much is read as is printed.
    Couchbase lists only keys: of each service the first 20000 documents are read; --prefix selects others. --open,
    --dead and --principal read all documents.

    \b
    Exit code 0: listed, even if there is none.
    Exit code 2: no store, or one that cannot be read.
    """
    if selection.principal is not None and only_dead:
        raise click.UsageError("--principal selects sagas, --dead lists what needs a person: give one of them")
    if only_open and only_dead:
        raise click.UsageError("--open lists sagas, --dead what needs a person: give one of them")
    selection = replace(selection, only_open=only_open, only_dead=only_dead)
    if only_dead:
        asyncio.run(print_attention(selection, deployment, as_json))
    else:
        asyncio.run(_print_list(selection, deployment, as_json))


async def _print_list(selection: Selection, deployment: Deployment, as_json: bool) -> None:
    found, more = list[ListedSaga](), False
    async for each in list_sagas(selection, deployment):
        if each is None:
            more = True
            break
        if not as_json:
            print_lines(
                *([format_row(SAGA_HEADING, SAGA_WIDTHS)] if not found else []),
                format_row(format_saga_cells(each), SAGA_WIDTHS),
            )
        found.append(each)
    if as_json:
        print_json({"sagas": [listed_saga_to_json(each) for each in found], "more": more})
    elif not found:
        print_lines("no sagas")
    if more and not as_json:
        print_lines("and more: raise --limit to see them")


# -------------------------------------------------------------------- show


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """The options that select what `saga sagas show` prints of a saga."""

    follow: bool
    wait_s: int | None
    """Maximum time in seconds to wait until the saga has ended; `None` to show it as it is."""
    transition: int | None
    service: str | None
    steps: bool
    values: bool
    reveal: Operator | None
    """The operator to whom sensitive fields are shown; `None` to redact them."""


def _make_details(*, wait: str | None, reveal: bool, who: str, why: str, **given: Any) -> ShowOptions:
    if reveal:
        require_audit_fields(who, why)
    wait_s = None if wait is None else parse_duration_s("--wait", wait)
    details = ShowOptions(**given, wait_s=wait_s, reveal=Operator(who, why) if reveal else None)
    if details.follow and wait is not None:
        raise click.UsageError("--follow never ends, --wait ends with the saga: give one of them")
    if details.follow and details.transition is not None:
        raise click.UsageError("--follow shows new transitions, --transition an old one: give one of them")
    if details.steps and details.follow:
        raise click.UsageError("--steps shows old transitions: leave out --follow, or use --json, which includes steps")
    if details.values and (details.follow or details.transition is not None):
        raise click.UsageError("--values is for the whole timeline: leave out --follow and --transition")
    if reveal and not details.values:
        raise click.UsageError("--reveal needs --values: give both")
    return details


@click.command()
@click.argument("saga_id")
@pack_options(
    "details",
    _make_details,
    click.option("--follow", "-f", is_flag=True, help="Keep printing new transitions until Ctrl-C."),
    click.option("--wait", metavar="TIME", help="First wait until it has ended, at most this long: 10s, 2m."),
    click.option(
        "--transition", type=click.IntRange(0), metavar="N", help="Show transition N, and the state after it."
    ),
    click.option("--service", help="Only this service."),
    click.option("--steps", is_flag=True, help="With details of each step, update and read."),
    click.option("--values", is_flag=True, help="With the fields of the events; sensitive ones are hidden."),
    click.option("--reveal", is_flag=True, help="With --values: sensitive fields too. Recorded in the key log."),
    click.option("--who", default="", help="With --reveal: your name, for the audit."),
    click.option("--why", default="", help="With --reveal: your reason, for the audit."),
)
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; with --follow one per transition.")
def show(saga_id: str, details: ShowOptions, deployment: Deployment, as_json: bool) -> None:
    """Show one saga in all services as a timeline.

    There is one line for each transition: time, service and number, handler, what was done with the message and why,
    the message, the emitted events, and the steps. Below it is a line for each failed attempt. Lines are in order of
    time, but an effect never stands above its cause. At the end is unfinished work, and for each retried handler how
    often it failed, why, when its next attempt is, and how many messages wait behind it. The reason why a compensation
    fails is read from the topics <service>.dead. The heading says who started the saga, if that is known. What is left
    over when the saga has ended is listed separately: messages of handlers that wait for further events. They expire
    with the saga's progress.

    --steps shows for each step, update and read: how long a step took, the digest of its arguments, the expected error
    that it raised, and the size of its result, or the document in saga-archive that holds it.

    --values shows the fields of each emitted event, decoded by contracts/; fields that a contract marks as sensitive
    are ***. With --reveal they are shown, and decrypted if they are encrypted. That is recorded in the key log (`saga
    keys log`) before anything is printed, so SAGA_KEYS must be set.

    saga sagas show order-17 --values --reveal --who ada --why "the bank asks which card it was"

    `--transition 3 --service payment` shows one transition, and the state after it.

    --wait shows the saga when it has ended: its outcome is known, no service that knows it has open work, and after a
    failure all of them have undone what their compensations undo. If the time is over before, it is shown as it is, and
    standard error says what it still waits for.

    \b
    Exit code 0: shown; with --wait: and it has ended.
    Exit code 1: no service knows the saga, it has no such transition, or with --wait it has not ended in time.
    Exit code 2: no store, one that cannot be read, or options that exclude each other.
    """
    if details.follow:
        with suppress(KeyboardInterrupt):
            asyncio.run(_follow(saga_id, deployment, details.service, as_json))
        return
    left = _wait(saga_id, deployment, details.wait_s)
    _show(saga_id, details, deployment, as_json)
    if left:
        print_lines(
            f"saga {saga_id} has not ended within {details.wait_s} s:",
            *(f"  {what}" for what in left),
            f"saga explain {saga_id} says what holds it up",
            err=True,
        )
        sys.exit(1)


def _wait(saga: str, deployment: Deployment, wait_s: int | None) -> list[str]:
    """Wait up to `wait_s` seconds until the saga has ended. Return what the saga still waits for: nothing if it has
    ended, or if `wait_s` is `None`."""
    if wait_s is None:
        return []
    try:
        contracts = find_library().contracts
    except SagaError:  # without contracts the services still report which outcomes they took as failures
        contracts = {}
    return asyncio.run(wait_for_end(saga, deployment, contracts, wait_s))


def _show(saga_id: str, details: ShowOptions, deployment: Deployment, as_json: bool) -> None:
    """Print one saga in its current state. Exit with code 1 if no service knows it, and with 2 if it cannot be read."""
    seen = asyncio.run(read_saga(saga_id, deployment, details.service))
    if not seen.histories and seen.unreadable:
        sys.exit(2)  # the reasons are printed
    if not seen.histories:
        where = f"{details.service} does not know" if details.service else "no service knows"
        print_lines(
            f"{where} saga {saga_id}, or its first event is not handled yet; `saga sagas list` shows the known ones",
            err=True,
        )
        sys.exit(1)
    if details.transition is not None:
        _print_transition(_get_only_history(seen), details.transition, as_json, details.steps)
        return
    decoder = asyncio.run(_reveal(saga_id, seen, details.reveal)) if details.reveal else None
    values = {h.service: read_event_fields(h, decoder) for h in seen.histories} if details.values else None
    if seen.undoing:  # the topic of dead letters is read only in this case
        seen = asyncio.run(add_reasons(saga_id, seen, deployment))
    if as_json:
        print_json(_details_to_json(saga_id, seen, values))
        return
    heading = _format_heading(saga_id, seen, details.service)
    print_lines(*heading, "", *_format_timeline(seen.entries, values, details.steps), *_format_open_work(seen))


async def _reveal(saga: str, seen: SagaDetails, operator: Operator) -> EventDecoder:
    """Return a decoder that decrypts the saga's events. Before that, record in the key log who sees them."""
    ring = key_ring_of(Settings.from_environment())
    decoder = await make_decoder(seen.histories, ring)
    ring.append_audit_line("reveal", saga, operator.who, operator.why)
    return decoder


async def _follow(saga: str, deployment: Deployment, service: str | None, as_json: bool) -> None:
    async for lines in follow_saga(saga, deployment, service):
        for line in lines:
            print_lines(*([json.dumps(asdict(line))] if as_json else [_format_line(line), *_format_attempts(line)]))


def _get_only_history(seen: SagaDetails) -> SagaHistory:
    """Return the history of the one service that was read. Raises a usage error if there are several."""
    first, *others = seen.histories
    if others:
        names = ", ".join(h.service for h in seen.histories)
        raise click.UsageError(f"each service counts its own transitions: name one of {names} with --service")
    return first


def _print_transition(history: SagaHistory, n: int, as_json: bool, with_steps: bool) -> None:
    """Print a transition and the state after it. Exit with code 1 if there is no such transition."""
    try:
        line, state = find_transition(history, n)
    except LookupError:
        print_lines(
            f"{history.service} has no transition {n} of saga {history.progress.saga}: it has 0 to "
            f"{history.progress.n - 1}",
            err=True,
        )
        sys.exit(1)
    if as_json:
        print_json({"saga": history.progress.saga, **asdict(line), "state": state})
        return
    version = f", version {line.version}" if line.version > 1 else ""
    text = f"state after transition {n}{version}: {json.dumps(state, indent=2, ensure_ascii=False)}"
    print_lines(_format_line(line), *(map(_format_call, line.calls) if with_steps else ()), "", *text.split("\n"))


Values: TypeAlias = Mapping[str, Mapping[int, Sequence[EventFields]]]
"""Decoded events, by service and number of the transition."""


def _details_to_json(saga: str, seen: SagaDetails, values: Values | None) -> dict[str, object]:
    return {
        "saga": saga,
        "services": {
            s.service: {
                **asdict(s),
                "transitions": h.progress.n,
                "fields": hide_marked(h.progress.state),
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


def _format_heading(saga: str, seen: SagaDetails, service: str | None) -> list[str]:
    outcome = next((s.outcome for s in seen.statuses if s.outcome), None)
    if service is not None:  # the outcome may be in another service
        return [f"saga {saga} in {service}"]
    ended = f"ended with {outcome}" if outcome else "no outcome yet"
    if principals := dict.fromkeys(s.principal for s in seen.statuses if s.principal):
        ended += f"; started by {' and '.join(map(quote_text, principals))}"
    return [f"saga {saga}: {ended}; known to {', '.join(map(_name_history, seen.histories))}"]


def _name_history(history: SagaHistory) -> str:
    """Return the service's name, followed by the version of its state unless that is the first version."""
    version = history.progress.version
    return f"{history.service} (state version {version})" if version > 1 else history.service


def _format_timeline(lines: Sequence[TimelineEntry], values: Values | None, with_steps: bool) -> list[str]:
    widths = [max((len(cell(line)) for line in lines), default=0) for cell in _CELLS]
    table = []
    for line in lines:
        table += [
            _format_line(line, widths),
            *_format_attempts(line),
            *(map(_format_call, line.calls) if with_steps else ()),
        ]
        for event in values[line.service].get(line.transition, ()) if values is not None else ():
            fields = event.problem if event.fields is None else json.dumps(event.fields, ensure_ascii=False)
            table.append(f"    {event.type} {fields}")
    return table


def _format_line(line: TimelineEntry, widths: Sequence[int] = (24, 14, 14, 11)) -> str:
    cells = "  ".join(f"{cell(line):<{width}}" for cell, width in zip(_CELLS, widths, strict=True))
    return f"{cells}  {_format_story(line)}"


def _format_attempts(line: TimelineEntry) -> list[str]:
    """Format the failed attempts of a transition, one per line."""
    return [
        f"    attempt {each.attempt} failed at {each.time} after {each.ms} ms"
        + (f" on {each.worker}" if each.worker else "")
        + f": {each.reason}"
        for each in line.failures
    ]


def _format_call(made: TimelineStep) -> str:
    """Describe a step, update or read."""
    what = f"{made.kind} {made.name}" + (f"({made.arguments})" if made.arguments else "")
    what += f" {made.number}" if made.number > 1 else ""
    what += f" of {made.document}" if made.kind == "update" else ""
    result = f"result {made.claim} in saga-archive" if made.claim else f"result {count_noun(made.bytes, 'byte')}"
    if made.answer:
        result = f"raised {made.answer}"
    origin = f", according to {made.by}" if made.by else f", by {made.instead}" if made.instead else ""
    return f"    {what}: {f'{made.ms} ms, ' if made.kind == 'step' else ''}input {made.input}, {result}{origin}"


_CELLS: tuple[Callable[[TimelineEntry], str], ...] = (
    lambda line: line.time,
    lambda line: f"{line.service} {line.transition}",
    lambda line: line.handler,
    lambda line: line.outcome,
)


def _format_story(line: TimelineEntry) -> str:
    """Describe the message of a transition and what the service did with it."""
    story = line.type + (f" -> {', '.join(line.emitted)}" if line.emitted else "")
    if line.steps:
        story += f"  [{', '.join(line.steps)}]"
    if line.attempt > 1:
        story += f"  attempt {line.attempt}"
    return story + (f"  ({line.reason})" if line.reason else "")


def _format_open_work(seen: SagaDetails) -> list[str]:
    """List all unfinished work, one item per line, and then what is left over."""
    work = list_open_work(seen)
    parts = ("still open:", work.open), ("left over, and nothing is to be done:", work.left_over)
    return [
        line
        for heading, found in parts
        if found
        for line in ("", heading, *(f"  {service}: {what}" for service, what in found))
    ]


# -------------------------------------------------------------------- verify


@click.command()
@click.argument("saga_id", required=False)
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def verify(saga_id: str | None, deployment: Deployment, as_json: bool) -> None:
    """Check that recorded histories are unchanged and complete.

    Transitions form a hash chain: each one contains the hash of the one before it, the first one the hash of its
    service and saga, and the progress the hash of the last one. So the command finds a transition that was changed,
    left out or inserted, in archives too, and a history that was put in the place of another one. Each transition also
    contains digests of what it changed in the progress: state, outcome, inbox, completed runs, closed handlers,
    compensable results, queued and pending messages, and what is to be compensated. The progress must match them. So
    the command finds that the last transitions were cut off, even if count and hash were adjusted.

    The transition events on the topic saga.transitions are the witness. With it the command finds an earlier version of
    a whole progress, another history, a missing progress that cannot have expired, and two transitions with one number,
    for as long as the topic keeps the events (SAGA_TRANSITIONS_DAYS). A person who can also write to the topic can
    deceive it. `saga sagas rebuild` publishes what it rebuilds, and that is the history from then on. With
    SAGA_TRANSITIONS=off there is no witness. A service of which no store is read is named on standard error if sagas of
    it must still exist; that does not change the exit code, because the store may be another team's.

    \b
    Not found, because nothing in the store shows it (fields of the progress in parentheses):
    - without the witness: an earlier version of a whole progress, a missing progress, and changes by an attacker who
      computed all hashes again
    - begun runs (intents): an additional one, or a change or removal that contradicts nothing
    - self-consumed events that handlers still wait for or that are withdrawn with a result (own): one that was removed
      or put back
    - the types of self-consumed events in the release of the service that wrote last (heard)
    - the times of inbox entries, and an additional entry with the time 0, as self-consumed events have it
    - the number of published transitions (published) while a run has begun, and of published transition events (told)
    - the start of a saga that was not known from the beginning
    - who started a saga (principal), if it is left out: earlier releases left it out, too
    - before the first transition: everything but service, saga and start

    So this finds mistakes and manual tampering. It proves nothing against those who can write to store and topic and
    know how. Histories that an older version of saga began are not bound to their saga, and of their progress only the
    state is compared; their number is printed.

    \b
    Exit code 0: all histories, or those of SAGA_ID, are as they were written.
    Exit code 1: some are not (saga, service and transition are named), or no service knows SAGA_ID.
    Exit code 2: no store, or one that cannot be read.
    """
    found = asyncio.run(_verify(deployment, saga_id))
    unknown = saga_id is not None and not found.histories
    for service, count in sorted(found.without_store.items()):
        print_error(
            f"no store of {service} was read, and {count_noun(count, 'published saga')} of it cannot have expired: "
            "name it with --store; if it is lost, restore it, or see saga sagas rebuild"
        )
    if as_json:
        print_json(asdict(found))
    elif unknown:
        print_lines(f"no service knows saga {saga_id}", err=True)
    else:
        _print_report(found)
    sys.exit(1 if found.broken or unknown else 0)


async def _verify(deployment: Deployment, saga: str | None) -> VerificationReport:
    # The topic is read before the stores. So every published transition must be in the stores.
    published = await read_published_histories(deployment.broker_settings, deployment.clock, saga)
    return await verify_histories(deployment, saga, published)


def _print_report(found: VerificationReport) -> None:
    for broken in found.broken[:BROKEN_SHOWN_MAX]:
        print_lines(f"saga {broken.saga} in {broken.service}: {broken.what}")
        if broken.todo:
            print_lines(f"  to do: {broken.todo}")
    if len(found.broken) > BROKEN_SHOWN_MAX:
        print_lines(f"and {len(found.broken) - BROKEN_SHOWN_MAX} more: --json shows all")
    print_lines(
        f"{found.transitions} transitions in {found.histories} histories of {', '.join(found.services)}: "
        + (f"{len(found.broken)} histories are not as they were written" if found.broken else "all unchanged")
    )
    if found.alone is not None:
        print_lines(f"without a witness ({found.alone}): an earlier version of a whole progress would not be found")
    else:
        unpublished = found.histories - len(found.broken) - found.witnessed - found.in_part
        print_lines(
            f"compared with {TRANSITIONS}: {found.witnessed} to their last transition, {found.in_part} in part, "
            f"{unpublished} not at all: not published, or no longer kept"
        )
    if found.rebuilt:
        print_lines(
            f"{found.rebuilt} of them were rebuilt by saga sagas rebuild: events published before that are not compared"
        )
    if found.strange:
        print_lines(f"{found.strange} records on {TRANSITIONS} are not transitions: another program writes there")
    if found.older:
        print_lines(f"{found.older} in an older format: not bound to their saga, and only their state is compared")


# -------------------------------------------------------------------- repair


@click.command()
@click.argument("modules", nargs=-1, required=True)
@broker_option
@stores_option
@click.option("--saga", "saga", metavar="ID", help="Only this saga.")
@click.option("--dry-run", is_flag=True, help="Only print which sagas it would resume.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text, one document per saga and line.")
def repair(
    modules: tuple[str, ...], broker: str | None, store: str | None, saga: str | None, dry_run: bool, as_json: bool
) -> None:
    """Resume sagas that have ready work but nothing that triggers it.

    Whatever waits for a time (parked runs, failing compensations, deadlines, suspended runs) has a timer on a topic. If
    these topics were deleted, or offsets on them moved, no timer fires: this command publishes the timer of each
    waiting saga again, and the service continues. If work has begun or is ready, and nothing has happened for longer
    than a handler may take, this command continues it itself, with the same idempotency keys.

    Topics that were deleted and created again, or a log that was lost, no longer contain what was published there, but
    the progress of each saga does. This command publishes it again, in the same order and with the same ids, so that
    consumers recognize duplicates. It finds these topics by itself.

    A new release may have a handler for an event that the service itself emits. Events of this type that earlier
    releases emitted are in the progress of each saga, and a saga handles them with its next message. This command
    handles them in all sagas at once, even in those that will get no further message.

    MODULES declare the services: call `saga sagas repair services.payment --dry-run` first, then without. Call it when
    all processes run the new release. They may keep running: it works like one more of them. It may be stopped at any
    time and called again: it continues with what is left.

    \b
    Exit code 0: done, or printed with --dry-run.
    Exit code 1: a saga could not be resumed; its line says why. The others are done.
    Exit code 2: wrong usage, or something cannot be opened; standard error says what to do.
    """
    settings = Settings.from_environment(broker=broker, store=store)
    whole = asyncio.run(_repair_and_print(wiring.load_services(modules), settings, saga, dry_run, as_json))
    sys.exit(0 if whole else 1)


async def _repair_and_print(
    services: Sequence[Declared], settings: Settings, saga: str | None, dry_run: bool, as_json: bool
) -> bool:
    """Print a line for each saga when it is repaired. Return whether all sagas were repaired without a problem."""
    count = problems = 0
    report = EventLog(sys.stderr, settings).report
    async for one in repairing.repair(services, settings, SystemClock(), report, saga=saga, dry_run=dry_run):
        count += 1
        problems += one.problem is not None
        if as_json:
            print_json(_repaired_to_json(one))
        else:
            print_lines(_format_repaired(one, dry_run))
    if not as_json:
        done = "to resume" if dry_run else f"resumed, {count_noun(problems, 'problem')}"
        print_lines(f"{count_noun(count, 'saga')} {done}")
    return problems == 0


def _repaired_to_json(one: RepairedSaga) -> dict[str, object]:
    return {
        "service": one.service,
        "saga": one.saga,
        "again": one.again,
        "heard": one.work.self_consumed_types,
        "begun": [intent.handler for intent in one.work.begun],
        "ready": one.work.ready,
        "wakes_at": one.work.wakes_at,
        "did": one.did,
        "problem": one.problem,
    }


def _format_repaired(one: RepairedSaga, dry_run: bool) -> str:
    return f"{one.service}  {one.saga}  {one.problem or _describe_repaired(one, dry_run)}"


def _describe_repaired(one: RepairedSaga, dry_run: bool) -> str:
    """Describe what was done with a saga or, in a dry run, what would be done."""
    work, words = one.work, []
    if one.again:
        words.append(f"{count_noun(one.again, 'record')} {'would be' if dry_run else 'are'} published again")
    if dry_run:
        words += [f"would handle {', '.join(work.self_consumed_types)}"] if work.self_consumed_types else []
        left = [*(f"{each.handler}, which has begun" for each in work.begun), *([work.ready] if work.ready else [])]
        words += [f"would resume {', '.join(left)}"] if left else []
        words += [f"its timer for {work.wakes_at} would be sent again"] if work.wakes_at else []
        return "; ".join(words)
    if one.did:
        words.append(", ".join(f"{handler} {outcome}" for handler, outcome, _ in one.did))
    elif not work.is_wake_alone and not one.again:
        words.append("nothing was ready")
    elif work.wakes_at:
        words.append(f"its timer for {work.wakes_at} is sent again")
    return "; ".join(words)


# -------------------------------------------------------------------- rebuild


@click.command()
@click.argument("modules", nargs=-1, required=True)
@broker_option
@stores_option
@click.option("--saga", "saga", metavar="ID", help="Only this saga.")
@click.option("--dry-run", is_flag=True, help="Only print what would be rebuilt.")
@click.option("--apply", is_flag=True, help="Rebuild.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text, one document per saga and line.")
def rebuild(  # one parameter for each option
    modules: tuple[str, ...],
    broker: str | None,
    store: str | None,
    saga: str | None,
    dry_run: bool,
    apply: bool,
    as_json: bool,
) -> None:
    """Rebuild lost progress documents from the topics.

    It finds sagas of which the service has handled messages but its store has no progress, because the store was
    restored from an old copy, or documents were removed. MODULES declare the services: call `saga sagas rebuild
    services.payment --dry-run` first, then with --apply. An existing progress is never changed.

    No external system is called. If a handler emitted something, its run is recorded as the log shows it. If it emitted
    nothing and makes no external call, it runs again here. Any other run is left to the service, which repeats it with
    the same idempotency keys as before. If the log does not determine a saga, the saga is refused, with the reason.
    Results of steps are not in the log, and so not in the rebuilt progress.

    \b
    Exit code 0: all were rebuilt, or would be.
    Exit code 1: one could not be rebuilt, its line says why, and the others are done; or --saga is unknown.
    Exit code 2: wrong usage, or something cannot be opened; standard error says what to do.
    """
    if dry_run == apply:
        raise click.UsageError("give --dry-run to see what would be rebuilt, or --apply to rebuild it")
    settings = Settings.from_environment(broker=broker, store=store)
    whole = asyncio.run(_rebuild_and_print(wiring.load_services(modules), settings, saga, apply, as_json))
    sys.exit(0 if whole else 1)


async def _rebuild_and_print(
    services: Sequence[Declared], settings: Settings, saga: str | None, apply: bool, as_json: bool
) -> bool:
    """Print a line for each saga. Return whether all sagas were rebuilt without a problem."""
    made, problems, clock = 0, 0, SystemClock()
    async for one in repairing.rebuild(services, settings, clock, saga=saga, apply=apply):
        problems += one.problem is not None
        made += one.problem is None
        if as_json:
            print_json(asdict(one))
        else:
            print_lines(_format_rebuilt(one))
    if not as_json:
        print_lines(f"{count_noun(made, 'saga')} {'rebuilt' if apply else 'to be rebuilt'}, {problems} cannot be")
    if saga is not None and not made + problems and not await repairing.is_known(saga, services, settings, clock):
        names = ", ".join(service.name for service in services)
        print_error(
            f"saga {saga} is unknown: {names} has no progress of it, and the topics hold no handled message of it "
            "within the retention: check the id"
        )
        return False
    return problems == 0


def _format_rebuilt(one: RebuiltSaga) -> str:
    if one.problem is not None:
        return f"{one.service}  {one.saga}  cannot be rebuilt: {one.problem}"
    words = [", ".join(f"{handler or 'a deadline'} {outcome}" for handler, outcome in one.did)]
    if one.left:
        words.append(f"run again by the service: {', '.join(one.left)}")
    if one.unsaid:
        words.append(f"published now: {', '.join(one.unsaid)}")
    return f"{one.service}  {one.saga}  {'; '.join(words)}"
