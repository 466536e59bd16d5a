"""`saga sagas`: list sagas, show one as a timeline, verify what services have recorded, repair and rebuild sagas."""

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
    prefix_option,
    require_audit_fields,
    selection_options,
    services_option,
    stores_option,
)
from saga.cli.printing import print_error, print_json, print_lines
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.encryption.sensitive_fields import hide_marked
from saga.messaging.names import TRANSITIONS
from saga.ops import repair as repairing
from saga.ops.event_fields import EventDecoder, EventFields, make_decoder, read_event_fields
from saga.ops.histories import SagaHistory, TimelineEntry, TimelineStep, find_transition
from saga.ops.history_verifier import VerificationReport, read_published_histories, verify_histories
from saga.ops.repair import RebuiltSaga, RepairedSaga
from saga.ops.sagas import ListedSaga, SagaDetails, add_reasons, describe_open_work, follow_saga, list_sagas, read_saga
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
@click.option("--open", "only_open", is_flag=True, help="Only sagas to which something is still to happen.")
@click.option("--dead", "only_dead", is_flag=True, help="What needs a person: dead letters, escalations, and the like.")
@selection_options(
    prefix_option,
    services_option,
    click.option("--principal", metavar="TEXT", help="Only sagas that this principal started, as in user:4711."),
    limit_option(50),
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def list_command(deployment: Deployment, selection: Selection, only_open: bool, only_dead: bool, as_json: bool) -> None:
    """List sagas, newest first.

    For each saga: the event with which it ended, if it has; when it started and last changed; what is still open over
    all services; and its state in each service that knows it, in a word:

    \b
    handled, ignored, waiting, queued, compensated  what became of the last message
    later         a handler goes on another time
    begun         a handler is at it
    retrying      a run has failed, and waits for its next attempt
    quarantined   a dead letter blocks it
    damaged       what the service keeps of it cannot be read

    In OPEN, `parked` are runs that wait for their next attempt, `deadlines` what runs at its time, `later` what goes
    on later; `queue` is what waits behind what is parked, and behind dead letters. --json says of each handler how
    often it failed, why, since when, and when it is tried again. `unstarted` are messages, failures of the saga among
    them, that wait for one which tells when the saga began: if its service has forgotten the saga, they wait for ever.

    A part of a fan-in is open until its handler can never run: it is closed, has run, or emits outcomes and the saga
    has ended there. Nor is it open in a saga that has an outcome, or failed as some service knows, has nothing else
    open anywhere, and of which no service has written anything for an hour.

    With --dead: all that the services have said on their topics <service>.dead, and what blocks a saga in their
    stores, each with the reason: dead letters, escalations (a compensation that fails, or what it cannot undo),
    messages that nobody could read or that came too late, and how each stands. It reads these topics from their
    beginning.

    A list costs what it prints, where a store knows in which order its documents came: SQLite does. Of Couchbase, which
    lists keys only, the first 20000 documents of a service are looked at: --prefix chooses others. --open, --dead
    and --principal look at all.

    \b
    Exit code 0: listed, even if there is none.
    Exit code 2: no store, or one that cannot be read.
    """
    if selection.principal is not None and only_dead:
        raise click.UsageError("--principal is about sagas, --dead about what needs a person: give one of them")
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
        print_lines("and more: --limit shows them")


# -------------------------------------------------------------------- show


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """What `saga sagas show` prints of a saga."""

    follow: bool
    transition: int | None
    service: str | None
    steps: bool
    values: bool
    reveal: Operator | None
    """Operator to whom sensitive fields are shown; `None` keeps them hidden."""


def _make_details(*, reveal: bool, who: str, why: str, **given: Any) -> ShowOptions:
    if reveal:
        require_audit_fields(who, why)
    details = ShowOptions(**given, reveal=Operator(who, why) if reveal else None)
    if details.follow and details.transition is not None:
        raise click.UsageError("--follow shows what comes, --transition what was: give one of them")
    if details.steps and details.follow:
        raise click.UsageError("--steps is for what was: leave --follow out, or take --json, which has them")
    if details.values and (details.follow or details.transition is not None):
        raise click.UsageError("--values is for the whole timeline: leave --follow and --transition out")
    if reveal and not details.values:
        raise click.UsageError("--reveal is for --values: give both")
    return details


@click.command()
@click.argument("saga_id")
@pack_options(
    "details",
    _make_details,
    click.option("--follow", "-f", is_flag=True, help="Go on with what is new, as it comes, until Ctrl-C."),
    click.option("--transition", type=click.IntRange(0), metavar="N", help="The state when transition N was written."),
    click.option("--service", help="Only what this service has recorded."),
    click.option("--steps", is_flag=True, help="With what is recorded of each step, update and read."),
    click.option("--values", is_flag=True, help="With the fields of the events; sensitive ones hidden."),
    click.option("--reveal", is_flag=True, help="With --values: sensitive fields too; it is recorded in the key log."),
    click.option("--who", default="", help="With --reveal: your name, for the audit."),
    click.option("--why", default="", help="With --reveal: your reason, for the audit."),
)
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; with --follow one for each transition.")
def show(saga_id: str, details: ShowOptions, deployment: Deployment, as_json: bool) -> None:
    """Show one saga in all services as a timeline.

    A line for each transition: when, service and number, handler, what became of the message and why, the message, the
    events that followed, and the steps that were taken; below it each attempt that failed. Lines are in order of time,
    but an effect never stands above its cause. At the end: what has not come to its end, and of what is tried again how
    often it failed, why, when it is tried again, and how much waits behind it. Of a compensation that fails it is asked
    in the log why: on the topics <service>.dead. Above it who began the saga, if that was said.

    --steps shows of each step, update and read: how long a step took, the digest of its arguments, the declared
    exception with which it answered, and how large what it gave is, or the document in saga-archive that holds it.

    --values shows each event that was emitted with its fields, read by contracts/; those that a contract calls
    sensitive are ***. With --reveal they are shown, and opened if they are sealed: that is noted in the book of keys
    (`saga keys log`) before anything is printed, so SAGA_KEYS has to be set.

    saga sagas show order-17 --values --reveal --who ada --why "the bank asks which card it was"

    `--transition 3 --service payment` shows one transition, and the state as it was when it had been written.

    \b
    Exit code 0: shown.
    Exit code 1: no service knows the saga, or it has no such transition.
    Exit code 2: no store, one that cannot be read, or options that do not go together.
    """
    if details.follow:
        with suppress(KeyboardInterrupt):
            asyncio.run(_follow(saga_id, deployment, details.service, as_json))
        return
    seen = asyncio.run(read_saga(saga_id, deployment, details.service))
    if not seen.histories:
        where = f"{details.service} does not know" if details.service else "no service knows"
        print_lines(f"{where} saga {saga_id}; `saga sagas list` shows those that are known", err=True)
        sys.exit(1)
    if details.transition is not None:
        _print_transition(_get_only_history(seen), details.transition, as_json, details.steps)
        return
    decoder = asyncio.run(_reveal(saga_id, seen, details.reveal)) if details.reveal else None
    values = {h.service: read_event_fields(h, decoder) for h in seen.histories} if details.values else None
    if seen.undoing:  # the log is read only then
        seen = asyncio.run(add_reasons(saga_id, seen, deployment))
    if as_json:
        print_json(_details_to_json(saga_id, seen, values))
        return
    heading = _format_heading(saga_id, seen, details.service)
    print_lines(*heading, "", *_format_timeline(seen.entries, values, details.steps), *_format_open_work(seen))


async def _reveal(saga: str, seen: SagaDetails, operator: Operator) -> EventDecoder:
    """Return a decoder that decrypts the saga's events, after recording who sees them."""
    ring = key_ring_of(Settings.from_environment())
    decoder = await make_decoder(seen.histories, ring)
    ring.append_audit_line("reveal", saga, operator.who, operator.why)
    return decoder


async def _follow(saga: str, deployment: Deployment, service: str | None, as_json: bool) -> None:
    async for lines in follow_saga(saga, deployment, service):
        for line in lines:
            print_lines(*([json.dumps(asdict(line))] if as_json else [_format_line(line), *_format_attempts(line)]))


def _get_only_history(seen: SagaDetails) -> SagaHistory:
    """Return the history of the selected service."""
    first, *others = seen.histories
    if others:
        names = ", ".join(h.service for h in seen.histories)
        raise click.UsageError(f"each service counts its own transitions: name one of {names} with --service")
    return first


def _print_transition(history: SagaHistory, n: int, as_json: bool, with_steps: bool) -> None:
    """Print the transition and the state then; exit code 1 if there is none."""
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
    told = f"state after transition {n}{version}: {json.dumps(state, indent=2, ensure_ascii=False)}"
    print_lines(_format_line(line), *(map(_format_call, line.calls) if with_steps else ()), "", *told.split("\n"))


Values: TypeAlias = Mapping[str, Mapping[int, Sequence[EventFields]]]
"""Events with their fields, by service and transition."""


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
        ended += f"; begun by {' and '.join(map(quote_text, principals))}"
    return [f"saga {saga}: {ended}; known to {', '.join(map(_name_history, seen.histories))}"]


def _name_history(history: SagaHistory) -> str:
    """Return the service's name, with the version of its state unless that is the first."""
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
        for said in values[line.service].get(line.transition, ()) if values is not None else ():
            fields = said.problem if said.fields is None else json.dumps(said.fields, ensure_ascii=False)
            table.append(f"    {said.type} {fields}")
    return table


def _format_line(line: TimelineEntry, widths: Sequence[int] = (24, 14, 14, 11)) -> str:
    cells = "  ".join(f"{cell(line):<{width}}" for cell, width in zip(_CELLS, widths, strict=True))
    return f"{cells}  {_format_story(line)}"


def _format_attempts(line: TimelineEntry) -> list[str]:
    """Format the attempts that failed before or in the transition, one per line."""
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
    gave = f"gave {made.claim} in saga-archive" if made.claim else f"gave {count_noun(made.bytes, 'byte')}"
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


def _format_story(line: TimelineEntry) -> str:
    """Describe the message and what the service did with it."""
    story = line.type + (f" -> {', '.join(line.emitted)}" if line.emitted else "")
    if line.steps:
        story += f"  [{', '.join(line.steps)}]"
    if line.attempt > 1:
        story += f"  attempt {line.attempt}"
    return story + (f"  ({line.reason})" if line.reason else "")


def _format_open_work(seen: SagaDetails) -> list[str]:
    """List all unfinished work, one item per line."""
    left = [
        f"  {status.service}: {what}"
        for history, status in zip(seen.histories, seen.statuses, strict=True)
        for what in describe_open_work(history.progress, status, seen.failing)
    ]
    return ["", "still open:", *left] if left else []


# -------------------------------------------------------------------- verify


@click.command()
@click.argument("saga_id", required=False)
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def verify(saga_id: str | None, deployment: Deployment, as_json: bool) -> None:
    """Check that recorded histories are unchanged and complete.

    Each transition holds the hash of the one before it, the first one that of its service and saga, the progress that
    of the last one. So a transition that was changed, left out or put in is found, in archives too, and a history in
    the place of another one. Each transition also holds digests of what it changed of the progress: state, outcome,
    inbox, what has run, is closed, can be undone, is queued, waits or is to be undone must be what the transitions
    make of it. So cutting off the last transitions is found, though count and hash are put right.

    What the services told on the topic saga.transitions is the witness: a whole earlier version in the place of a later
    one, another history, no progress at all where it cannot have expired, and two transitions with one number are
    found, for as long as the topic keeps what was told (SAGA_TRANSITIONS_DAYS). Who can write the topic, too, can
    deceive it. `saga sagas rebuild` tells what it makes anew, and from there on that is the history. With
    SAGA_TRANSITIONS=off the witness is left alone.

    \b
    Not found, for nothing in the store tells of it:
    - without the witness: a whole earlier version of a progress in the place of a later one, no progress at all, and
      what somebody changed who computed all hashes anew
    - of what has begun (intents): a change or removal that contradicts nothing, or one more
    - which own events handlers here still wait for (own), or are withdrawn with a result: one that is
      missing, or was put back; and which of them the version takes that wrote last (heard)
    - the times of inbox entries, and one more with the time 0: these stand for own events, too
    - the mark that all is published (published), while something has begun; and from where on (told) the
      transitions are to be told
    - the start of a saga that was not known from the beginning
    - who began a saga (principal), where it is left out: releases that knew nothing of it leave it out, too
    - before the first transition: everything but service, saga and start

    So this finds mistakes and tampering by hand, and proves nothing against those who can write the store and the topic
    and know how. Histories that an older version of saga began are not bound to their saga, and of their progress only
    the state is compared: it is told how many there are.

    \b
    Exit code 0: all histories, or those of SAGA_ID, are as they were written.
    Exit code 1: some are not (saga, service and transition are named), or no service knows SAGA_ID.
    Exit code 2: no store, or one that cannot be read.
    """
    found = asyncio.run(_verify(deployment, saga_id))
    unknown = saga_id is not None and not found.histories
    if as_json:
        print_json(asdict(found))
    elif unknown:
        print_lines(f"no service knows saga {saga_id}", err=True)
    else:
        _print_report(found)
    sys.exit(1 if found.broken or unknown else 0)


async def _verify(deployment: Deployment, saga: str | None) -> VerificationReport:
    # The topic is read before the stores: then everything published must be in the stores.
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
        print_lines(
            f"without a witness ({found.alone}): that something earlier lies in the place of it all is not found"
        )
    else:
        untold = found.histories - len(found.broken) - found.witnessed - found.in_part
        print_lines(
            f"as told on {TRANSITIONS}: {found.witnessed} to their last transition, {found.in_part} in part, {untold} "
            "not at all: it was not told, or is not kept any more"
        )
    if found.rebuilt:
        print_lines(
            f"{found.rebuilt} of them were made anew by saga sagas rebuild: what was told of them before is not "
            "compared"
        )
    if found.strange:
        print_lines(f"{found.strange} records on {TRANSITIONS} are no transitions: somebody else writes there")
    if found.older:
        print_lines(f"{found.older} of an older format: not bound to their saga, and only their state is compared")


# -------------------------------------------------------------------- repair


@click.command()
@click.argument("modules", nargs=-1, required=True)
@broker_option
@stores_option
@click.option("--saga", "saga", metavar="ID", help="This saga alone.")
@click.option("--dry-run", is_flag=True, help="Only tell which sagas it would go on with.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line for each saga, instead of text.")
def repair(
    modules: tuple[str, ...], broker: str | None, store: str | None, saga: str | None, dry_run: bool, as_json: bool
) -> None:
    """Resume sagas that have ready work but nothing that triggers it.

    What waits for a time (parked runs, failing compensations, deadlines, suspended runs) has a timer on a topic. If
    these topics were deleted, or offsets on them moved, no timer would fire: this command sends the timer of each
    waiting saga again, and the service continues. Work that has begun or is ready, and was left for longer than a
    handler may take, this command continues itself, with the same idempotency keys.

    Topics that were deleted and created again, or a log that was lost, no longer contain what was published there. The
    progress of each saga records it. This command publishes it again, in the same order and with the same ids, so that
    consumers that have already handled it recognize duplicates. It finds these topics by itself.

    After a release in which a handler takes an event that its own service emits: what earlier releases emitted is in
    the progress of each saga, and a saga hears of it with its next message. This command does it for all sagas at once,
    those that will get no message with them. MODULES declare the services, as in `saga sagas repair services.payment
    --dry-run`, then without.

    Call it when all processes run the new release. They may keep running: it works as one more of them. It may be
    stopped at any time and called again: it continues with what is left.

    \b
    Exit code 0: done, or told.
    Exit code 1: a saga could not be gone on with; its line says why, the others are done.
    Exit code 2: asked wrongly, or something cannot be opened; what to do is on standard error.
    """
    settings = Settings.from_environment(broker=broker, store=store)
    whole = asyncio.run(_repair_and_print(wiring.load_services(modules), settings, saga, dry_run, as_json))
    sys.exit(0 if whole else 1)


async def _repair_and_print(
    services: Sequence[Declared], settings: Settings, saga: str | None, dry_run: bool, as_json: bool
) -> bool:
    """Print a line for each saga as it is repaired. Return whether none has a problem."""
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
        done = "to go on with" if dry_run else f"gone on with, {count_noun(problems, 'problem')}"
        print_lines(f"{count_noun(count, 'saga')} {done}")
    return problems == 0


def _repaired_to_json(one: RepairedSaga) -> dict[str, object]:
    return {
        "service": one.service,
        "saga": one.saga,
        "again": one.again,
        "heard": one.work.heard,
        "begun": [intent.handler for intent in one.work.begun],
        "ready": one.work.ready,
        "wakes_at": one.work.wakes_at,
        "did": one.did,
        "problem": one.problem,
    }


def _format_repaired(one: RepairedSaga, dry_run: bool) -> str:
    return f"{one.service}  {one.saga}  {one.problem or _describe_repaired(one, dry_run)}"


def _describe_repaired(one: RepairedSaga, dry_run: bool) -> str:
    """Describe what was done with a saga, or would be."""
    work, words = one.work, []
    if one.again:
        words.append(f"{count_noun(one.again, 'record')} {'would be' if dry_run else 'are'} published again")
    if dry_run:
        words += [f"would hear of {', '.join(work.heard)}"] if work.heard else []
        left = [*(f"{each.handler}, which has begun" for each in work.begun), *([work.ready] if work.ready else [])]
        words += [f"would go on with {', '.join(left)}"] if left else []
        words += [f"would be woken at {work.wakes_at}"] if work.wakes_at else []
        return "; ".join(words)
    if one.did:
        words.append(", ".join(f"{handler} {outcome}" for handler, outcome, _ in one.did))
    elif not work.is_wake_alone and not one.again:
        words.append("nothing was ready")
    elif work.wakes_at:
        words.append(f"its wake is sent again, for {work.wakes_at}")
    return "; ".join(words)


# -------------------------------------------------------------------- rebuild


@click.command()
@click.argument("modules", nargs=-1, required=True)
@broker_option
@stores_option
@click.option("--saga", "saga", metavar="ID", help="This saga alone.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be made.")
@click.option("--apply", is_flag=True, help="Make it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line for each saga, instead of text.")
def rebuild(  # a parameter for each option
    modules: tuple[str, ...],
    broker: str | None,
    store: str | None,
    saga: str | None,
    dry_run: bool,
    apply: bool,
    as_json: bool,
) -> None:
    """Rebuild lost progress documents from the topics.

    For sagas of which the service has handled messages and its store has no progress: after a store was restored from
    an old copy, or documents were removed. MODULES declare the services, as in `saga sagas rebuild services.payment
    --dry-run`, then with --apply. A progress that is there is never touched.

    Nothing outside is called. A run of a handler that has said something is recorded with what the log has of it; one
    that has said nothing, and asks for nothing outside, is made again here; any other is left to the service, which
    makes it under the same keys as before. A saga of which the log does not say what it was is refused, with the
    reason. What steps answered is not in the log, and not in the progress that is made.

    \b
    Exit code 0: all were made, or would be.
    Exit code 1: one could not be; its line says why, the others are made. Or nothing is known of the saga of --saga.
    Exit code 2: asked wrongly, or something cannot be opened; what to do is on standard error.
    """
    if dry_run == apply:
        raise click.UsageError("say --dry-run to see what would be made, or --apply to make it")
    settings = Settings.from_environment(broker=broker, store=store)
    whole = asyncio.run(_rebuild_and_print(wiring.load_services(modules), settings, saga, apply, as_json))
    sys.exit(0 if whole else 1)


async def _rebuild_and_print(
    services: Sequence[Declared], settings: Settings, saga: str | None, apply: bool, as_json: bool
) -> bool:
    """Print a line for each saga. Return whether none has a problem."""
    made, problems, clock = 0, 0, SystemClock()
    async for one in repairing.rebuild(services, settings, clock, saga=saga, apply=apply):
        problems += one.problem is not None
        made += one.problem is None
        if as_json:
            print_json(asdict(one))
        else:
            print_lines(_format_rebuilt(one))
    if not as_json:
        print_lines(f"{count_noun(made, 'saga')} {'made' if apply else 'to be made'} anew, {problems} cannot be")
    if saga is not None and not made + problems and not await repairing.is_known(saga, services, settings, clock):
        names = ", ".join(service.name for service in services)
        print_error(
            f"nothing is known of saga {saga}: {names} has no progress of it, and the topics hold no message of it "
            "that was handled and is to be remembered: see its id"
        )
        return False
    return problems == 0


def _format_rebuilt(one: RebuiltSaga) -> str:
    if one.problem is not None:
        return f"{one.service}  {one.saga}  cannot be made: {one.problem}"
    words = [", ".join(f"{handler or 'a deadline'} {outcome}" for handler, outcome in one.did)]
    if one.left:
        words.append(f"run again by the service: {', '.join(one.left)}")
    if one.unsaid:
        words.append(f"published now: {', '.join(one.unsaid)}")
    return f"{one.service}  {one.saga}  {'; '.join(words)}"
