"""Controls: what people switch in a service while it runs, as messages, and the book in which all of it stands. Pure.

The book is one document of the service, which only adds: each entry holds the digest of the one before. So it is the
audit, and what is switched now is what its entries make of it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b, sha256
from math import isfinite
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from saga.errors import BadInput, SagaError
from saga.messages import Message, Outgoing, Record
from saga.messaging import envelope
from saga.messaging.names import OURS, command_topic
from saga.support.clock import from_iso, iso

TYPE = f"{OURS}.control"
"""Type of the message: no contract's name has a dot."""
OPERATOR = "operator"
TEXT_MAX = 500
NAME_MAX = 100
ENTRIES_MAX = 10_000
"""Entries of a book, at most: it is read whole."""
KINDS = ("flag", "pause", "limit", "route")
"""Kinds of switches that this version knows."""
WHOM_OF = {"pause": ("handler",), "limit": ("resource", "handler"), "route": ("handler", "event")}
"""Things that each kind may be for."""
WHOM = ("handler", "event", "resource")
PARTS = 10_000
"""Parts into which the sagas are divided: a percentage is exact to two places."""

encode = msgspec.json.encode
Target = tuple[str, str, str]
"""Kind of a switch, and what it is for: `handler`, `event`, `resource` or `service`, with the name."""


class Switch(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Setting of a flag, for a share of all sagas or for one; or, by its kind, what is paused, limited or routed.

    One of another kind has a flag without a name: a version that knows flags alone takes it for one for which nobody
    asks. And whoever meets a kind that it does not know leaves that alone.
    """

    flag: str = msgspec.field(default_factory=str)  # written even if it is empty: earlier versions ask for it
    percent: float = msgspec.field(default_factory=float)
    """Share of the sagas for which it is on; of one saga 0 or 100."""
    saga: str | None = None
    """Saga that it is for; `None`: all."""
    until: str | None = None
    """Time from which on it is as if it had never been set; `None`: it stays."""
    kind: str = "flag"
    """One of `KINDS`, or of a later version."""
    off: bool = False
    """True if it ends what was switched so."""
    handler: str | None = None
    """Handler, compensation or deadline that it is for; `None`, and nothing else named: the whole service."""
    event: str | None = None
    """Event whose messages are routed."""
    resource: str | None = None
    """Resource that is limited."""
    at_once_max: int | None = None
    """Calls of it, or runs, at once; `None`: what is declared."""
    rate_per_s: float | None = None


class Control(Message, frozen=True, kw_only=True, gc=False):
    """Wish of a person about a service."""

    switch: Switch
    who: str
    why: str


class ControlEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Entry of the book."""

    id: str
    time: str
    who: str
    why: str
    switch: Switch
    previous: str
    """SHA-256 of the bytes of the entry before; of the first one that of the service's name."""
    refused: str | None = None
    """Why the service does not do so; `None`: it does."""


class ControlLog(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that people have switched in a service."""

    service: str
    entries: tuple[Raw, ...] = ()


class _ControlValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Value of the record."""

    who: str
    why: str
    switch: Switch


def control_log_key(service: str) -> str:
    """Key of the book, in collection `saga-archive`: no service has a `|` in its name, so no archive is called so."""
    return f"{service}|controls::{OURS}::book"


def control_to_record(service: str, switch: Switch, *, who: str, why: str, now_ms: int) -> Outgoing:
    """Record of a wish. Said again at another time it is another one. Raises `BadInput` for what can be none."""
    said = _ControlValue(who=who, why=why, switch=switch)
    _check(said)
    if switch.until is not None and from_iso(switch.until) <= now_ms:
        raise BadInput(f"it would be over at once, for {switch.until} is past: give a time to come, or leave it out")
    value, time = msgspec.json.encode(said), iso(now_ms)
    digest = blake2b(time.encode() + value, digest_size=16).hexdigest()
    headers = envelope.headers_of_ours(TYPE, f"control-{digest}", OPERATOR, time, service)
    return Outgoing(command_topic(service), service.encode(), value, headers)


def parse_control(record: Record) -> Control:
    """Wish in a record. Raises `BadInput`: anybody may write to the topic."""
    message = envelope.to_message(record, type_=TYPE, schema="", contract=None)
    try:
        said = msgspec.json.decode(message.value, type=_ControlValue)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"it is no control: its value is not JSON with `who`, `why` and `switch`: {why}") from why
    _check(said)
    return Control(
        id=message.id,
        type=TYPE,
        schema="",
        saga=message.saga,
        source=message.source,
        time=message.time,
        value=b"",
        trace=message.trace,
        switch=said.switch,
        who=said.who,
        why=said.why,
    )


def _check(said: _ControlValue) -> None:
    for name, text in (("who", said.who), ("why", said.why)):
        if not text.strip() or len(text) > TEXT_MAX:
            raise BadInput(f"the control's {name!r} has to be a text of at most {TEXT_MAX} characters")
    mistakes = find_mistakes(said.switch)
    if mistakes:
        raise BadInput("; ".join(mistakes))


def find_mistakes(switch: Switch) -> list[str]:
    """All that is wrong with a switch, whatever the service declares."""
    if switch.kind not in KINDS:
        return [f"a control of the kind {switch.kind!r} is of a later version: ask again when that runs everywhere"]
    wrong = list[str]()
    if switch.kind == "flag":
        if not switch.flag.strip() or len(switch.flag) > NAME_MAX:
            wrong.append(f"a flag's name is a text of at most {NAME_MAX} characters")
        if not 0 <= switch.percent <= 100:
            wrong.append(f"a flag is on for 0 to 100 percent of the sagas, not for {switch.percent}")
        if switch.saga is not None and (not switch.saga or len(switch.saga.encode()) > envelope.SAGA_BYTES_MAX):
            wrong.append("the saga of a flag has to be a saga id")
    else:
        wrong += _find_other_mistakes(switch)
    if switch.until is not None:
        try:
            from_iso(switch.until)
        except (ValueError, OverflowError):
            what = "flag is set" if switch.kind == "flag" else f"{switch.kind} holds"
            wrong.append(f"a {what} until an RFC 3339 time, not until {switch.until!r}")
    return wrong


def _find_other_mistakes(switch: Switch) -> list[str]:
    """The same of what is no flag."""
    wrong = list[str]()
    named = {what: name for what in WHOM if (name := getattr(switch, what)) is not None}
    for what, name in named.items():
        if what not in WHOM_OF[switch.kind]:
            wrong.append(f"a {switch.kind} is for no {what}")
        elif not name.strip() or len(name) > NAME_MAX:
            wrong.append(f"the {what} of a {switch.kind} is a name of at most {NAME_MAX} characters")
    if len(named) > 1:
        wrong.append(f"a {switch.kind} is for one thing, not for {' and '.join(named)} together")
    if not named and switch.kind != "pause":
        wrong.append(f"a {switch.kind} needs its {' or its '.join(WHOM_OF[switch.kind])}: name it")
    if switch.kind != "limit" or switch.off:
        return wrong
    if switch.at_once_max is None and switch.rate_per_s is None:
        wrong.append("a limit says how many at once, or how many a second")
    if switch.at_once_max is not None and switch.at_once_max < 1:
        wrong.append(f"a limit lets at least one through at once, not {switch.at_once_max}: to stop it, pause it")
    if switch.rate_per_s is not None and not (isfinite(switch.rate_per_s) and switch.rate_per_s > 0):
        wrong.append(f"a limit lets more than 0 a second through, not {switch.rate_per_s}: to stop it, pause it")
    if switch.handler is not None and switch.rate_per_s is not None:
        wrong.append("a handler is limited in its runs at once; what is limited a second is a resource")
    return wrong


# -------------------------------------------------------------------- the book


def decode_control_log(service: str, content: bytes | None) -> ControlLog:
    """The book as it was read. Raises `SagaError` for one that cannot be read, down to each entry and its time."""
    if content is None:
        return ControlLog(service=service)
    try:
        book = msgspec.json.decode(content, type=ControlLog)
        for entry in entries_of(book):
            if entry.switch.until is not None:
                from_iso(entry.switch.until)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError) as why:
        raise SagaError(f"the book of controls of {service} cannot be read: {why}; restore it") from why
    return book


def entries_of(book: ControlLog) -> Sequence[ControlEntry]:
    """Entries of a book, oldest first."""
    return [msgspec.json.decode(raw, type=ControlEntry) for raw in book.entries]


def append_control(book: ControlLog, control: Control, refused: str | None = None) -> ControlLog | None:
    """The book with one more wish; `None` if it is in there. `refused`: why the service does not do so. Raises
    `BadInput` if there is no room."""
    if any(entry.id == control.id for entry in entries_of(book)):
        return None
    if len(book.entries) >= ENTRIES_MAX:
        raise BadInput(f"the book of controls is full: it has {ENTRIES_MAX} entries")
    entry = ControlEntry(
        id=control.id,
        time=control.time,
        who=control.who,
        why=control.why,
        switch=control.switch,
        previous=_digest_before(book, len(book.entries)),
        refused=refused,
    )
    return replace(book, entries=(*book.entries, Raw(msgspec.json.encode(entry))))


def _digest_before(book: ControlLog, n: int) -> str:
    return sha256(bytes(book.entries[n - 1]) if n else book.service.encode()).hexdigest()


def digest_of(book: ControlLog) -> str:
    """Digest of the last entry: whoever notes it elsewhere sees when one behind it goes."""
    return _digest_before(book, len(book.entries))


def verify_control_log(book: ControlLog) -> str | None:
    """First contradiction in a book; `None` if it is as it was written."""
    for n, entry in enumerate(entries_of(book)):
        if entry.previous != _digest_before(book, n):
            return f"entry {n} is not written behind the one before it: somebody has changed, added or removed one"
    return None


# -------------------------------------------------------------------- flags


class Flags(Struct, frozen=True):
    """Flags as a book has them: the last word on each, for all sagas and for single ones."""

    for_all: Mapping[str, Switch] = {}
    for_one: Mapping[tuple[str, str], Switch] = {}


def flags_of(book: ControlLog) -> Flags:
    """Flags as the entries of a book make them."""
    for_all: dict[str, Switch] = {}
    for_one: dict[tuple[str, str], Switch] = {}
    for entry in entries_of(book):
        switch = entry.switch
        if switch.kind != "flag" or entry.refused is not None:
            continue
        if switch.saga is None:
            for_all[switch.flag] = switch
        else:
            for_one[switch.flag, switch.saga] = switch
    return Flags(for_all, for_one)


def is_on(flags: Flags, flag: str, saga: str, now_ms: int) -> bool:
    """True if a flag is on for a saga: as it was set for this one, else for the share of all to which the saga belongs.
    A saga that is in a share is in every larger one of the same flag; another flag divides the sagas otherwise."""
    for switch in (flags.for_one.get((flag, saga)), flags.for_all.get(flag)):
        if switch is not None and (switch.until is None or now_ms < from_iso(switch.until)):
            return bucket_of(flag, saga) < switch.percent * PARTS / 100
    return False


def bucket_of(flag: str, saga: str) -> int:
    """Part of all sagas, by number, to which a saga belongs for a flag.

    >>> part_of("new_pricing", "order-17") == part_of("new_pricing", "order-17") < PARTS
    True
    """
    return int.from_bytes(blake2b(f"{flag}|{saga}".encode(), digest_size=8).digest(), "big") % PARTS


# -------------------------------------------------------------------- active controls


class DeclaredNames(NamedTuple):
    """Names that a service declares: what people may mean."""

    handlers: Collection[str]
    compensations: Collection[str]
    deadlines: Collection[str]
    resources: Collection[str]
    events: Mapping[str, Collection[str]]
    """Each type that it consumes, with the handlers that may be given dead letters of it: no compensation."""
    flags: Collection[str] | None = None
    """Flags for which its code asks; `None`: they cannot be told."""


class ActiveControls(Struct, frozen=True):
    """All that is switched, those whose time is over included."""

    flags: Flags = Flags()
    others: Mapping[Target, ControlEntry] = {}
    """Pauses, limits and routes that were not ended, each with who switched it, and why."""
    unknown: tuple[str, ...] = ()
    """Kinds of switches that this version does not know, and leaves alone."""


def read_controls(book: ControlLog) -> ActiveControls:
    """Controls as the entries of a book make them."""
    others: dict[Target, ControlEntry] = {}
    unknown = set[str]()
    for entry in entries_of(book):
        switch = entry.switch
        if switch.kind not in KINDS:
            unknown.add(switch.kind)
        elif switch.kind != "flag" and entry.refused is None:
            others.pop(target_of(book.service, switch), None)
            if not switch.off:
                others[target_of(book.service, switch)] = entry
    return ActiveControls(flags_of(book), others, tuple(sorted(unknown)))


def target_of(service: str, switch: Switch) -> Target:
    """Target of a pause, limit or route."""
    named = ((what, name) for what in WHOM if (name := getattr(switch, what)) is not None)
    return switch.kind, *next(named, ("service", service))


def is_expired(entry: ControlEntry, now_ms: int) -> bool:
    """True if the time of a switch is over."""
    return entry.switch.until is not None and from_iso(entry.switch.until) <= now_ms


def active_entries(controls: ActiveControls, now_ms: int) -> Mapping[Target, ControlEntry]:
    """Pauses, limits and routes of now."""
    return {target: entry for target, entry in controls.others.items() if not is_expired(entry, now_ms)}


def find_pause(controls: ActiveControls, service: str, name: str, now_ms: int) -> ControlEntry | None:
    """Pause because of which a handler or compensation begins nothing: its own, else that of the service."""
    return _first(controls, (("pause", "handler", name), ("pause", "service", service)), now_ms)


def find_route(controls: ActiveControls, handler: str, types: Iterable[str], now_ms: int) -> ControlEntry | None:
    """Route because of which a handler's messages, of these types, are dead letters."""
    events = [("route", "event", type_) for type_ in types]
    return _first(controls, [("route", "handler", handler), *events], now_ms)


def _first(controls: ActiveControls, targets: Iterable[Target], now_ms: int) -> ControlEntry | None:
    for target in targets:
        entry = controls.others.get(target)
        if entry is not None and not is_expired(entry, now_ms):
            return entry
    return None


def describe_entry(service: str, entry: ControlEntry) -> str:
    """Reason, for people, that something does not run."""
    kind, _, name = target_of(service, entry.switch)
    what = "paused" if kind == "pause" else "routed to the dead letters"
    until = "" if entry.switch.until is None else f", until {entry.switch.until}"
    return f"{name} is {what} by {entry.who}: {entry.why}{until}"


def why_refused(service: str, switch: Switch, names: DeclaredNames, controls: ActiveControls) -> str | None:
    """Why the service does not do what a switch wants, all reasons together; `None` if it does."""
    if switch.kind == "flag":
        return _refuse_unused_flag(switch, names, controls)
    if switch.off:  # what it is for may not be declared any more
        if target_of(service, switch) in controls.others:
            return None
        there = [name for kind, _, name in controls.others if kind == switch.kind]
        return (
            f"there is no {switch.kind} of {target_of(service, switch)[2]} to be ended; there are {_list_names(there)}"
        )
    wrong = list[str]()
    runs = (*names.handlers, *names.compensations, *names.deadlines)
    if switch.handler is not None and switch.handler not in runs:
        wrong.append(f"there is no handler {switch.handler!r}; there are {_list_names(runs)}")
    if switch.resource is not None and switch.resource not in names.resources:
        wrong.append(f"there is no resource {switch.resource!r}; there are {_list_names(names.resources)}")
    if switch.event is not None and switch.event not in names.events:
        wrong.append(f"it takes no event {switch.event!r}; it takes {_list_names(names.events)}")
    if switch.kind == "route":
        if switch.handler in names.compensations:
            wrong.append(
                f"{switch.handler} is a compensation: what it undoes would stand; pause it, if it must not run"
            )
        elif switch.handler in names.deadlines:
            wrong.append(f"{switch.handler} is a deadline: its saga might have no end; pause it, if it must not run")
        elif switch.event is not None and names.events.get(switch.event) == ():
            wrong.append(f"no handler takes {switch.event}, only compensations or deadlines: pause these, one by one")
    return "; ".join(wrong) or None


def _refuse_unused_flag(switch: Switch, names: DeclaredNames, controls: ActiveControls) -> str | None:
    """Why a flag would switch nothing; `None` if the service asks for it, or it is set already."""
    known = {*controls.flags.for_all, *(flag for flag, _ in controls.flags.for_one)}
    if names.flags is None or switch.flag in names.flags or switch.flag in known:
        return None
    return (
        f"nothing here asks for flag {switch.flag!r}; there are {_list_names(names.flags)}: a flag is off until it is "
        "set, "
        "so deploy the release that asks for it first"
    )


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def describe_switch(switch: Switch) -> str:
    """Switch in words, as `saga control show` prints it."""
    until = "" if switch.until is None else f" until {switch.until}"
    if switch.kind != "flag":
        return _describe_other(switch) + until
    whom = f"for {switch.saga}" if switch.saga is not None else f"for {switch.percent:g} % of the sagas"
    state = "" if switch.saga is None else " on" if switch.percent else " off"
    return f"flag {switch.flag}{state} {whom}{until}"


def _describe_other(switch: Switch) -> str:
    """A pause, a limit or a route in words, or that it has ended."""
    _, what, name = target_of("", switch)
    whom = f"of {what} {name}" if name else "of the whole service"
    if switch.off:
        return f"no {switch.kind} any more {whom}"
    said = [f"{switch.rate_per_s:g} a second"] if switch.rate_per_s is not None else []
    said += [f"{switch.at_once_max} at once"] if switch.at_once_max is not None else []
    return " ".join([switch.kind, whom, *(["to"] if said else []), " and ".join(said)]).rstrip()
