"""`saga dead`: list dead letters, and send services the commands to replay, discard, resolve or release them."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import click
from msgspec.structs import asdict as fields_of

from saga.cli.listing import attention_to_json, print_attention
from saga.cli.options import (
    LIMIT_MAX,
    age_option,
    all_option,
    before_option,
    class_option,
    deployment_options,
    handler_option,
    json_option,
    limit_option,
    operator_options,
    owner_option,
    pack_options,
    prefix_option,
    reason_option,
    sagas_option,
    selection_options,
    service_argument,
    services_option,
    type_option,
)
from saga.cli.printing import print_error, print_json, print_lines
from saga.configuration.wiring import load_services, open_keys
from saga.declarations.values import Declared
from saga.errors import BadInput, SagaError
from saga.messages import Message
from saga.messaging.operator_commands import StepAnswer, Wanted
from saga.ops.attention import (
    BlockingDeadLetter,
    find_attention,
    find_blocking,
    find_too_old,
    select_blocking,
    select_parked_runs,
)
from saga.ops.bulk_commands import RATE_MAX, RATE_MIN, BulkCommand, BulkRequest, LetterKey, parse_rate
from saga.ops.dead_letters import DeadLetter, read_originals
from saga.ops.operator_commands import (
    OUTCOMES,
    REPLAYS_MAX,
    CommandAnswer,
    CommandRequest,
    SentCommand,
    describe_answer,
    send_commands,
    wait_for_answers,
)
from saga.ops.rehearsal import RehearsalResult, RehearsalSetup, rehearse
from saga.ops.selection import Deployment, Operator, Selection
from saga.policies.retry import BLAMES

BATCH = 1000
"""Default of `--limit`: the maximum number of sagas that one command affects."""


@click.group()
def dead() -> None:
    """List dead letters; replay, discard or resolve them; release parked runs.

    A dead letter blocks its saga until a person decides. REPLAY it when its cause is fixed: the service continues where
    it was, with all recorded results and the same idempotency keys. DISCARD it if it must never be handled: an
    escalation lists what its run had begun, to be corrected by hand. RESOLVE it if only you know the result of an
    external call; resolve an escalation when its calls are corrected. RELEASE retries parked runs now.

    \b
    saga dead list
    saga dead replay payment --reason BankDown --who ada --why "the bank is back"

    These are commands on the topic <service>.commands. The service itself carries them out, in the order of the saga,
    and records them in the saga's history with who and why.
    """


@dead.command("list")
@deployment_options
@selection_options(
    prefix_option,
    sagas_option,
    handler_option,
    reason_option,
    services_option,
    class_option,
    owner_option,
    type_option,
    age_option,
    limit_option(50),
    only_dead=True,
)
@click.option("--all", "with_ended", is_flag=True, help="Include what has ended.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def list_dead(deployment: Deployment, selection: Selection, with_ended: bool, as_json: bool) -> None:
    """List what needs a person now, newest first.

    These are dead letters that block a saga, open escalations, runs that keep failing because of the service's own code
    (`failing`), and rejected messages that block nothing (`-`), which stay in the list. With --all, items that have
    ended are listed, too.

    CLASS says who can fix it: `data`, the sender; `code`, the authors of this service; `outside`, those who run the
    systems that the service calls; `person`, the operator who routed it there.

    \b
    Exit code 0: nothing that is selected needs a person.
    Exit code 1: something does.
    Exit code 2: no store, one that cannot be read, or an unknown service.
    """
    if asyncio.run(print_attention(selection, deployment, as_json, with_ended=with_ended)):
        raise click.exceptions.Exit(1)


@dead.command()
@click.argument("saga")
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def show(saga: str, deployment: Deployment, as_json: bool) -> None:
    """Show every dead letter and escalation of SAGA in full, with its remedy and its present state.

    For each one it shows the headers of the original; why it failed, where, and through which lines of the service; who
    can fix it, and who owns the event; the saga's state before the run; and the external calls that were made. All of
    this may contain values from messages.

    \b
    Exit code 0: shown.
    Exit code 1: there is none.
    Exit code 2: no store, or one that cannot be read.
    """
    selection = Selection(sagas=(saga,), limit=LIMIT_MAX, only_dead=True)
    found = asyncio.run(find_attention(selection, deployment))
    items = [each for each in found.items if each.letter.saga == saga]
    if as_json:
        print_json({"letters": [attention_to_json(each) for each in reversed(items)]})
    for each in reversed(items) if not as_json else ():
        print_lines(f"{each.letter.what}  {each.letter.id}", *(f"  {line}" for line in _lines(each.letter, each.state)))
    if not items:
        print_lines(f"saga {saga} has no dead letter and no escalation", err=True)
        raise click.exceptions.Exit(1)


def _lines(letter: DeadLetter, now: str) -> Sequence[str]:
    fields = {
        "now": now if now != "-" else None,
        "time": letter.time,
        "service": letter.service,
        "handler": letter.handler,
        "message": f"{letter.type or '?'} {letter.message or ''}".strip(),
        "owner": letter.owner,
        "attempts": letter.attempts,
        "class": next((words for blame, words in BLAMES.items() if blame == letter.blame), letter.blame),
        "why": letter.reason,
        "where": letter.where,
        "remedy": letter.remedy,
        "state": letter.state,
        "stored": letter.whole,
    }
    rows = [(name, text) for name, text in fields.items() if text]
    rows += [("call", call) for call in letter.calls]
    rows += [("through", place) for place in letter.stack]
    rows += [("header", f"{name}: {value if value is not None else '(null)'}") for name, value in letter.headers]
    return [f"{name:<9}{text}" for name, text in rows]


# -------------------------------------------------------------------- replay and discard


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of a replay or a discard."""

    again: bool
    """True to include sagas that have had `REPLAYS_MAX` replays or more."""
    dry_run: bool
    older: bool = False
    """True to include messages that were older than the service's retention."""
    modules: Sequence[str] = ()
    """Modules that declare the service. Their code is run in a rehearsal."""
    rate_per_s: float | None = None
    """Number of commands that are sent per second; `None` to send all at once."""


def _make_replay_options(*, rate: str | None, **given: Any) -> ReplayOptions:
    try:
        options = ReplayOptions(**given, rate_per_s=None if rate is None else parse_rate(rate))
    except BadInput as why:
        raise click.UsageError(f"--rate {rate}: {why}") from None
    if options.rate_per_s is not None and options.older:
        raise click.UsageError("--rate is for dead letters that block a saga: leave out --older")
    if options.modules and not options.dry_run:
        raise click.UsageError("--code needs --dry-run: otherwise the service runs its own code")
    return options


_SELECTS = selection_options(
    service_argument,
    sagas_option,
    handler_option,
    type_option,
    reason_option,
    class_option,
    owner_option,
    before_option,
    age_option,
    all_option,
    limit_option(BATCH),
    required=True,
    only_dead=True,
)
_again = click.option("--again", is_flag=True, help=f"Include sagas that had {REPLAYS_MAX} replays in this service.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only print what is selected.")
_older = click.option(
    "--older", is_flag=True, help="Include messages older than the retention; they are handled as new."
)
_rate = click.option(
    "--rate", metavar="N", help=f"Send N commands in a second, not all at once; {RATE_MIN:g} to {RATE_MAX:g}."
)
_code = click.option(
    "--code",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="With --dry-run: run the code of this module on a copy, and print what it would do.",
)


def _command(wanted: Wanted, help_text: str) -> click.Command:
    """Return the command `replay` or `discard`."""
    details = (_again, _dry_run, _rate, _older, _code) if wanted == "replay" else (_again, _dry_run, _rate)

    @click.command(wanted, help=help_text)
    @_SELECTS
    @operator_options
    @pack_options("options", _make_replay_options, *details)
    @deployment_options
    @json_option
    def command(
        selection: Selection, operator: Operator, options: ReplayOptions, deployment: Deployment, as_json: bool
    ) -> None:
        request = CommandRequest(wanted=wanted, operator=operator)
        if not asyncio.run(_replay(selection, request, options, deployment, as_json)):
            raise click.exceptions.Exit(1)

    return command


async def _replay(
    selection: Selection, request: CommandRequest, options: ReplayOptions, deployment: Deployment, as_json: bool
) -> bool:
    """Select dead letters, send the commands and print the results. Return whether everything that was asked for was
    done."""
    (service,) = selection.services
    code = _declared_in(options.modules, service) if options.modules else None
    late, is_cut = await find_too_old(selection, deployment) if options.older else ((), False)
    blocking = await select_blocking(selection, deployment)
    found = blocking.items
    looping = [each for each in found if _loops(each, request, options)]
    letters = [each.letter for each in found if each not in looping]
    for letter, replays in looping:
        print_error(
            f"saga {letter.saga} had {replays} replays in {letter.service} already: fix the cause, then add --again"
        )
    is_missing = _report_missing(selection, [*(each.letter for each in found), *late], "dead letter")
    if not found and not late:
        print_lines("no dead letter is selected: `saga dead list` shows those that block a saga", err=True)
        return False
    is_whole = not looping and not is_missing and not is_cut and not blocking.more
    if options.dry_run and code is None:
        for letter in letters:
            _print_state(letter, f"would be {OUTCOMES[request.wanted]}", letter.reason, as_json)
        for letter in late:
            _print_state(letter, "would be handled as new", letter.reason, as_json)
        return is_whole
    originals = await _read_originals(service, late, deployment)
    letters += [letter for letter in late if letter.id in originals]
    if code is not None:
        return await _rehearse_all(code, letters, originals, request, deployment, as_json=as_json) and is_whole
    if options.rate_per_s is not None:
        bulk = BulkRequest(command=request, rate_per_s=options.rate_per_s, again=options.again)
        return await _send_at_rate(letters, bulk, deployment, as_json) and is_whole
    sent = await send_commands(letters, request, deployment, originals) if letters else []
    is_whole = is_whole and len(originals) == len(late)
    return await _print_answers(sent, request, deployment, as_json) and is_whole


async def _print_answers(
    sent: Sequence[SentCommand], request: CommandRequest, deployment: Deployment, as_json: bool
) -> bool:
    """Print the result of each command when it arrives. Return whether all commands were carried out and no repeated
    run has failed again."""
    is_whole = True
    async for answer in wait_for_answers(sent, deployment, request.operator.wait_s):
        is_whole = answer.is_success(request.wanted) and is_whole
        _print_state(answer.sent.dead_letter, describe_answer(answer), answer.reason, as_json)
    return is_whole


async def _send_at_rate(
    letters: Sequence[DeadLetter], request: BulkRequest, deployment: Deployment, as_json: bool
) -> bool:
    """Send the commands at a limited rate. Print each result and, at the end, how many of each there were.

    Return whether all commands were carried out and no repeated run has failed again.
    """

    def report(answer: CommandAnswer) -> None:
        _print_state(answer.sent.dead_letter, describe_answer(answer), answer.reason, as_json)

    keys = [LetterKey(letter.service, letter.id, letter.saga or "") for letter in letters]
    bulk = BulkCommand(keys, request, deployment, report)
    try:
        await bulk.run()
    finally:
        print_error(bulk.progress.describe())
    return bulk.progress.done == bulk.progress.total


def _declared_in(modules: Sequence[str], service: str) -> Declared:
    """Return the declarations of the service from these modules."""
    found = next((declared for declared in load_services(modules) if declared.name == service), None)
    if found is None:
        raise click.UsageError(f"--code: none of these modules declares {service!r}")
    return found


async def _read_originals(service: str, late: Sequence[DeadLetter], deployment: Deployment) -> Mapping[str, Message]:
    """Read the original messages of these dead letters from the topic. Messages that are not complete there are
    reported and left out."""
    if not late:
        return {}
    ids = {letter.id for letter in late}
    found = await read_originals(service, ids, deployment.broker_settings, deployment.clock)
    for letter in late:
        if isinstance(why := found.get(letter.id), BadInput):
            print_error(f"saga {letter.saga} cannot be replayed: {why}")
    return {id_: message for id_, message in found.items() if isinstance(message, Message)}


def _loops(each: BlockingDeadLetter, request: CommandRequest, options: ReplayOptions) -> bool:
    return request.wanted == "replay" and not options.again and each.replays >= REPLAYS_MAX


def _report_missing(selection: Selection, found: Sequence[DeadLetter], what: str) -> bool:
    """Print each selected saga for which nothing was found. Return whether there was one."""
    present = {letter.saga for letter in found}
    missing = [saga for saga in dict.fromkeys(selection.sagas) if saga not in present]
    for saga in missing:
        print_error(f"saga {saga} has no selected {what}: check the id")
    return bool(missing)


def _print_state(letter: DeadLetter, what: str, why: str, as_json: bool) -> None:
    if as_json:
        print_json({"service": letter.service, "saga": letter.saga, "dead": letter.id, "state": what, "why": why})
    else:
        print_lines(f"{letter.service}  {letter.saga}  {letter.handler}  {what}: {why}")


CODES = """
    \b
    Exit code 0: done, or printed with --dry-run.
    Exit code 1: nothing is selected, or more than --limit; or a command was refused, failed again, or was not answered
    in time: see its line.
    Exit code 2: wrong usage, or something cannot be used; standard error says what to do.
"""

replay = _command(
    "replay",
    """Have SERVICE handle dead letters again, once their cause is fixed.

    \b
    saga dead replay payment --saga order-17 --who ada --why "the bank is back"

    A handler continues where it was: recorded results of steps and updates are reused, and other calls get the same
    idempotency keys as before. Then the queued messages of its saga follow, in order. A run that fails again becomes
    another dead letter.

    With --rate only so many commands are sent in a second, so that what has just recovered is not overrun. It stops
    after ten in a row without success. --limit says how many dead letters are selected at most.

    A message older than the service's retention blocks nothing, and the service keeps nothing of it. With --older it is
    handled as if it came now, as the first of a new saga if the service has no progress. Check first that it was not
    handled at its time. A message that contradicts one that was handled is never handled. If there is more than --limit
    allows, repeat the command for the rest.

    \b
    saga dead replay payment --all --dry-run --code services.payment --who ada --why "is it fixed?"

    With --dry-run and --code nothing is sent: the present code of MODULE runs here, on a copy of the saga and of the
    documents that it reads. Recorded results are reused; at the first call without one the rehearsal stops, and says
    which call it would make. It prints the transitions, the state before and after, and the events that would follow.
    A handler that calls an external system without a step does so here, too.
"""
    + CODES,
)
discard = _command(
    "discard",
    """Have SERVICE give up dead letters for good, and continue with the messages queued behind them.

    \b
    saga dead discard audit --saga order-17 --who ada --why "a test order"

    Calls that the run made are not undone; an escalation lists them, to be corrected by hand. Some dead letters
    cannot be discarded, because other services depend on them: those of a compensation, those of a handler that reacts
    to an outcome, and all at the service that decides how sagas end, unless an open deadline there ends this saga.
"""
    + CODES,
)


# -------------------------------------------------------------------- rehearsals


async def _rehearse_all(
    declared: Declared,
    letters: Sequence[DeadLetter],
    originals: Mapping[str, Message],
    request: CommandRequest,
    deployment: Deployment,
    *,
    as_json: bool,
) -> bool:
    """Print what each replay would do. Return whether all replays could be rehearsed, and none would be refused or fail
    again."""
    is_whole = True
    async with deployment.open_stores((declared.name,)) as sources:
        store = next((source.store for source in sources if source.service == declared.name), None)
        if store is None:
            print_error(f"there is no store of {declared.name}: give its address with --store")
            return False
        clock = deployment.clock
        keys = open_keys(deployment.broker_settings, clock, [declared])
        setup = RehearsalSetup(declared=declared, store=store, clock=clock, keys=keys)
        for letter in letters:
            try:
                result = await rehearse(letter, request, setup, originals.get(letter.id))
            except SagaError as why:
                print_error(f"saga {letter.saga} cannot be rehearsed: {why}")
                is_whole = False
                continue
            outcomes = [outcome for _, outcome, _ in result.did]  # the first is that of the command
            has_failed = "dead" in outcomes or "retrying" in outcomes  # a compensation is never given up
            is_whole = is_whole and outcomes[:1] == [OUTCOMES[request.wanted]] and not has_failed
            _print_rehearsal(result, as_json)
    return is_whole


def _print_rehearsal(done: RehearsalResult, as_json: bool) -> None:
    letter = done.letter
    if as_json:
        fields = {**asdict(done), "letter": letter.id, "emitted": list(map(fields_of, done.emitted))}
        print_json({"service": letter.service, "saga": letter.saga, **fields})
        return
    print_lines(f"{letter.service}  {letter.saga}  {letter.handler}")
    print_lines(
        *(f"  {handler} would be {outcome}{f': {reason}' if reason else ''}" for handler, outcome, reason in done.did)
    )
    for name in sorted({*done.before, *done.after}):
        before, after = done.before.get(name), done.after.get(name)
        if before != after:
            print_lines(f"  state    {name}: {_text(before)} -> {_text(after)}")
    for event in done.emitted:
        print_lines(f"  emits    {event.type} {event.problem if event.fields is None else _text(event.fields)}")
    for document in done.documents:
        print_lines(f"  changes  {document}")
    if done.stops is not None:
        print_lines(f"  stops    {done.stops}")


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# -------------------------------------------------------------------- resolve


class _Resolution(NamedTuple):
    """The answer to a step, or the ids of the escalations to close."""

    answer: StepAnswer | None
    escalations: tuple[str, ...]


def _make_resolution(step: str | None, escalations: tuple[str, ...], **given: Any) -> _Resolution:
    if (step is None) == (not escalations):
        raise click.UsageError("give --step with its result, or --escalation")
    if step is None and any(given[name] is not None for name in ("answered", "raised", "arguments")):
        raise click.UsageError("--answered, --raised and --args are the result of a --step: an escalation has none")
    return _Resolution(None if step is None else _make_answer(step, **given), escalations)


def _make_answer(step: str, number: int, answered: str | None, raised: str | None, arguments: str | None) -> StepAnswer:
    """Return the answer to a step that the operator has given with these options."""
    if (answered is None) == (raised is None):
        raise click.UsageError("give what the step returned, --answered JSON, or what it raised, --raised NAME")
    if arguments is not None and raised is None:
        raise click.UsageError("--args are the arguments of the exception: give --raised, too")
    name, text = ("--answered", answered) if raised is None else ("--args", arguments or "[]")
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        raise click.UsageError(f"{name} {text}: give JSON, including its quotes: '\"ch-1\"'") from None
    if raised is not None and not isinstance(value, list):
        raise click.UsageError(f"--args {text}: give a list, for example '[\"no money\"]'")
    return StepAnswer(step=step, number=number, value=json.dumps(value), raised=raised)


def _make_resolve_selection(saga: str, service: str | None, handler: str | None) -> Selection:
    services = (service,) if service is not None else ()
    return Selection(sagas=(saga,), services=services, handler=handler, limit=LIMIT_MAX, only_dead=True)


@click.command(
    help="""Give the result of a step of SAGA that the service cannot know, and continue; or close escalations.

    \b
    saga dead resolve order-17 --step reserve --answered '"ch-1"' --who ada --why "it is in the bank's list"
    saga dead resolve order-17 --step reserve --raised Declined --args '["no money"]' --who ada --why "the bank says so"
    saga dead resolve order-17 --escalation dead-4c87... --who ada --why "refunded by hand"

    With --step: the handler of the dead letter that blocks SAGA runs again. Where it calls this step it gets this
    result, whatever the arguments, and no call is made; a recorded step that it does not call any more is left out. Use
    it after "not deterministic", or if it is not known whether a call was made. Check the external system first:
    your answer is taken as true, and compensated accordingly. A step or exception that the run does not wait for is
    refused; the line says what it waits for.

    With --escalation: nothing runs; it is recorded that the calls were corrected.
"""
    + CODES
)
@pack_options(
    "selection",
    _make_resolve_selection,
    click.argument("saga"),
    click.option("--service", help="Only in this service, if several have a dead letter of SAGA."),
    click.option("--handler", help="Only of this handler or compensation, if there are several."),
)
@pack_options(
    "resolution",
    _make_resolution,
    click.option("--step", metavar="FUNCTION", help="Name of the function that the handler passes to saga.step."),
    click.option(
        "--number", type=click.IntRange(1), default=1, show_default=True, help="Which of its calls of this step."
    ),
    click.option("--answered", metavar="JSON", help="What it returned."),
    click.option("--raised", metavar="NAME", help="Name of the expected error that it raised."),
    click.option("--args", "arguments", metavar="JSON", help="The error's arguments, as a list."),
    click.option(
        "--escalation", "escalations", multiple=True, metavar="ID", help="Escalation to close. May be repeated."
    ),
)
@operator_options
@deployment_options
@json_option
def resolve(
    selection: Selection,
    resolution: _Resolution,
    operator: Operator,
    deployment: Deployment,
    as_json: bool,
) -> None:
    """Send the commands and print the result of each."""
    request = CommandRequest(wanted="resolve", operator=operator, answered=resolution.answer)
    if not asyncio.run(_resolve(selection, resolution.escalations, request, deployment, as_json)):
        raise click.exceptions.Exit(1)


async def _resolve(
    selection: Selection, escalations: Sequence[str], request: CommandRequest, deployment: Deployment, as_json: bool
) -> bool:
    """Send the commands and print the results. Return whether all commands were carried out."""
    (saga,) = selection.sagas
    if request.answered is None:
        letters = await _escalations(selection, escalations, deployment)
    else:
        blocking = find_blocking(selection, deployment)
        letters = [each.letter async for each in blocking if selection.matches(each.letter)]
        if len(letters) > 1:
            for letter in letters:
                print_lines(f"{letter.service}  {letter.saga}  {letter.handler}  {letter.id}", err=True)
            raise click.UsageError("several dead letters block this saga: give --service or --handler")
    unknown = [id_ for id_ in dict.fromkeys(escalations) if all(letter.id != id_ for letter in letters)]
    for id_ in unknown:
        print_error(f"saga {saga} has no open escalation {id_}: `saga dead show {saga}` lists the ids")
    if not letters:
        print_lines(f"saga {saga} has nothing to resolve: `saga dead show {saga}` shows what there is", err=True)
        return False
    sent = await send_commands(letters, request, deployment)
    return await _print_answers(sent, request, deployment, as_json) and not unknown


async def _escalations(selection: Selection, ids: Sequence[str], deployment: Deployment) -> list[DeadLetter]:
    """Find the escalations with these ids.

    Escalations of failing compensations are reported and left out, because they end when the compensation succeeds.
    """
    found = await find_attention(selection, deployment)
    selected = [each.letter for each in found.items if each.letter.id in ids and each.letter.what == "escalation"]
    for letter in selected:
        if letter.undoes is not None:
            print_error(f"{letter.id}: its compensation is retried until it succeeds, which closes the escalation")
    return [letter for letter in selected if letter.undoes is None]


# -------------------------------------------------------------------- release


@click.command(
    help="""Have SERVICE retry parked runs at once, instead of at the time of their next attempt.

    \b
    saga dead release payment --handler reserve --who ada --why "the bank is back"
    saga dead release payment --saga order-17 --dry-run --who ada --why "who waits?"

    A failed run waits up to an hour for its next attempt, and its saga waits, too. Once the cause is fixed, release it:
    the run continues where it was, with recorded results and the same idempotency keys, and then the queued messages
    follow. It is an ordinary attempt: if it fails, it is counted and parked again. A run that a pause, a limit or an
    open breaker holds back is held back again while that lasts. Deadlines and handlers that returned Later are not
    released before their time.

    \b
    Exit code 0: done, or printed with --dry-run.
    Exit code 1: nothing is selected, or more than --limit; or a run was refused, failed again, or was not answered in
    time: see its line.
    Exit code 2: wrong usage, or something cannot be used; standard error says what to do.
"""
)
@selection_options(
    service_argument,
    sagas_option,
    handler_option,
    type_option,
    reason_option,
    before_option,
    age_option,
    all_option,
    limit_option(BATCH),
    required=True,
    only_open=True,
)
@operator_options
@click.option("--dry-run", is_flag=True, help="Only print which runs are selected.")
@deployment_options
@json_option
def release(selection: Selection, operator: Operator, dry_run: bool, deployment: Deployment, as_json: bool) -> None:
    """Send the commands and print the result of each."""
    request = CommandRequest(wanted="release", operator=operator)
    if not asyncio.run(_release(selection, request, deployment, dry_run=dry_run, as_json=as_json)):
        raise click.exceptions.Exit(1)


async def _release(
    selection: Selection, request: CommandRequest, deployment: Deployment, *, dry_run: bool, as_json: bool
) -> bool:
    """Send the commands and print the results. Return whether all commands were carried out and no run has failed
    again."""
    found = await select_parked_runs(selection, deployment)
    runs = [run for run in found.runs if selection.matches(run)]
    is_missing = _report_missing(selection, runs, "parked run")
    if not runs:
        print_lines("no parked run is selected: `saga sagas list --open` shows runs that wait for an attempt", err=True)
        return False
    if dry_run:
        for run in runs:
            _print_state(run, "would be released", run.reason, as_json)
        return not is_missing and not found.more
    sent = await send_commands(runs, request, deployment)
    return await _print_answers(sent, request, deployment, as_json) and not is_missing and not found.more


for _each in (replay, discard, resolve, release):
    dead.add_command(_each)
