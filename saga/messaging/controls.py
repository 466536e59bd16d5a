"""Controls: flags, pauses, limits and routes that operators set in a running service. This module has their messages,
their records and the control log.

The control log is one document of the service. Entries are only ever added, and each one holds the digest of the
previous one, so the log serves as the audit trail. The active controls are computed from its entries. All functions
here are pure.
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
"""Message type of a control. No event has this type, because no contract's name contains a dot."""
OPERATOR = "operator"
TEXT_MAX = 500
NAME_MAX = 100
ENTRIES_MAX = 10_000
"""Maximum number of entries in a control log, because it is always read in full."""
KINDS = ("flag", "pause", "limit", "route")
"""Kinds of controls that this version knows."""
TARGETS_OF = {"pause": ("handler",), "limit": ("resource", "handler"), "route": ("handler", "event")}
"""The targets that each kind of control may have."""
TARGETS = ("handler", "event", "resource")
PARTS = 10_000
"""Number of buckets into which the sagas are divided, so a percentage is exact to two decimal places."""

encode = msgspec.json.encode
Target = tuple[str, str, str]
"""The kind of a control; the kind of what it applies to (`handler`, `event`, `resource` or `service`); and the name of
that."""


class Switch(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One setting of a control: of a flag (for a share of all sagas, or for one saga), a pause, a limit or a route.

    Only settings of kind `flag` have a flag name. A release that knows only flags reads the other kinds as a flag with
    an empty name, for which no code asks. In general, a release ignores a kind that it does not know.
    """

    flag: str = msgspec.field(default_factory=str)  # written even if it is empty: earlier versions require it
    percent: float = msgspec.field(default_factory=float)
    """Share of the sagas for which the flag is on, in percent. For a single saga it is 0 or 100."""
    saga: str | None = None
    """The saga to which a flag's setting applies; `None` for all sagas."""
    until: str | None = None
    """Time at which the setting ends; `None` if it has no end. When it ends, an earlier setting of the same control
    does not come back."""
    kind: str = "flag"
    """One of `KINDS`, or a kind of a later version."""
    off: bool = False
    """True if this ends the control of the same kind and target. Not used for flags."""
    handler: str | None = None
    """The handler, compensation or deadline to which it applies. A pause that names none applies to the whole
    service."""
    event: str | None = None
    """The event type whose messages are routed to the dead letters."""
    resource: str | None = None
    """The resource that is limited."""
    at_once_max: int | None = None
    """Maximum number of concurrent calls of the resource, or runs of the handler; `None` for the declared number."""
    rate_per_s: float | None = None


class Control(Message, frozen=True, kw_only=True, gc=False):
    """An operator's request to change a control of a service."""

    switch: Switch
    who: str
    why: str


class ControlEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One entry of the control log."""

    id: str
    time: str
    who: str
    why: str
    switch: Switch
    previous: str
    """SHA-256 of the previous entry's bytes. In the first entry, it is the SHA-256 of the service's name."""
    refused: str | None = None
    """Reason why the service refused the control; `None` if it accepted it."""


class ControlLog(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All controls that operators have set in a service, in order."""

    service: str
    entries: tuple[Raw, ...] = ()


class _ControlValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Value of the record of a control."""

    who: str
    why: str
    switch: Switch


def control_log_key(service: str) -> str:
    """Return the key of the control log in collection `saga-archive`.

    It cannot be the key of an archive, because no service name contains a `|`.
    """
    return f"{service}|controls::{OURS}::book"


def control_to_record(service: str, switch: Switch, *, who: str, why: str, now_ms: int) -> Outgoing:
    """Return the record of a control. Raises `BadInput` if the control is invalid, or if its `until` has passed.

    The same control at another time gets another id.
    """
    control = _ControlValue(who=who, why=why, switch=switch)
    _check(control)
    if switch.until is not None and from_iso(switch.until) <= now_ms:
        raise BadInput(f"it would expire at once, because {switch.until} is past: give a later time, or leave it out")
    value, time = msgspec.json.encode(control), iso(now_ms)
    digest = blake2b(time.encode() + value, digest_size=16).hexdigest()
    headers = envelope.headers_of_ours(TYPE, f"control-{digest}", OPERATOR, time, service)
    return Outgoing(command_topic(service), service.encode(), value, headers)


def parse_control(record: Record) -> Control:
    """Return the control in a record. Raises `BadInput` if the record is not a valid control, because anyone may write
    to the topic."""
    message = envelope.to_message(record, type_=TYPE, schema="", contract=None)
    try:
        value = msgspec.json.decode(message.value, type=_ControlValue)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"it is no control: its value is not JSON with `who`, `why` and `switch`: {why}") from why
    _check(value)
    return Control(
        id=message.id,
        type=TYPE,
        schema="",
        saga=message.saga,
        source=message.source,
        time=message.time,
        value=b"",
        trace=message.trace,
        switch=value.switch,
        who=value.who,
        why=value.why,
    )


def _check(value: _ControlValue) -> None:
    for name, text in (("who", value.who), ("why", value.why)):
        if not text.strip() or len(text) > TEXT_MAX:
            raise BadInput(f"the control's {name!r} has to be a string of at most {TEXT_MAX} characters")
    mistakes = find_mistakes(value.switch)
    if mistakes:
        raise BadInput("; ".join(mistakes))


def find_mistakes(switch: Switch) -> list[str]:
    """Return all mistakes in a setting that can be found without knowing the service's declarations."""
    if switch.kind not in KINDS:
        return [
            f"a control of the kind {switch.kind!r} is of a later version: repeat it when that version runs everywhere"
        ]
    wrong = list[str]()
    if switch.kind == "flag":
        if not switch.flag.strip() or len(switch.flag) > NAME_MAX:
            wrong.append(f"a flag's name is a string of at most {NAME_MAX} characters")
        if not 0 <= switch.percent <= 100:
            wrong.append(f"a flag is on for 0 to 100 percent of the sagas, not for {switch.percent}")
        if switch.saga is not None and (not switch.saga or len(switch.saga.encode()) > envelope.SAGA_BYTES_MAX):
            wrong.append("the saga of a flag has to be a saga id")
        if switch.saga is not None and 0 < switch.percent < 100:
            wrong.append(f"a flag is on or off for one saga: 100 or 0 percent, not {switch.percent:g}")
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
    """Return the mistakes in a pause, a limit or a route."""
    wrong = list[str]()
    named = {what: name for what in TARGETS if (name := getattr(switch, what)) is not None}
    for what, name in named.items():
        if what not in TARGETS_OF[switch.kind]:
            wrong.append(f"a {switch.kind} is for no {what}")
        elif not name.strip() or len(name) > NAME_MAX:
            wrong.append(f"the {what} of a {switch.kind} is a name of at most {NAME_MAX} characters")
    if len(named) > 1:
        wrong.append(f"a {switch.kind} is for one thing, not for {' and '.join(named)} together")
    if not named and switch.kind != "pause":
        wrong.append(f"a {switch.kind} needs its {' or its '.join(TARGETS_OF[switch.kind])}: name it")
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


# -------------------------------------------------------------------- control log


def decode_control_log(service: str, content: bytes | None) -> ControlLog:
    """Decode a control log. `content`: its bytes; `None` if the service has none yet, which gives an empty log. Raises
    `SagaError` if the log, one of its entries or a time in them cannot be read."""
    if content is None:
        return ControlLog(service=service)
    try:
        log = msgspec.json.decode(content, type=ControlLog)
        for entry in entries_of(log):
            if entry.switch.until is not None:
                from_iso(entry.switch.until)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError) as why:
        raise SagaError(f"the control log of {service} cannot be read: {why}; restore it") from why
    return log


def entries_of(log: ControlLog) -> Sequence[ControlEntry]:
    """Return the entries of a control log, oldest first."""
    return [msgspec.json.decode(raw, type=ControlEntry) for raw in log.entries]


def append_control(log: ControlLog, control: Control, refused: str | None = None) -> ControlLog | None:
    """Return the control log with `control` added as an entry; `None` if the log already contains this control.

    Args:
        refused: Reason why the service refuses the control; `None` if it accepts it.

    Raises:
        BadInput: The control log is full.
    """
    if any(entry.id == control.id for entry in entries_of(log)):
        return None
    if len(log.entries) >= ENTRIES_MAX:
        raise BadInput(f"the control log is full: it has {ENTRIES_MAX} entries")
    entry = ControlEntry(
        id=control.id,
        time=control.time,
        who=control.who,
        why=control.why,
        switch=control.switch,
        previous=_digest_before(log, len(log.entries)),
        refused=refused,
    )
    return replace(log, entries=(*log.entries, Raw(msgspec.json.encode(entry))))


def _digest_before(log: ControlLog, n: int) -> str:
    return sha256(bytes(log.entries[n - 1]) if n else log.service.encode()).hexdigest()


def digest_of(log: ControlLog) -> str:
    """Return the digest of the last entry. If an operator keeps a copy of the digest elsewhere, it shows later whether
    entries were removed from the end of the log."""
    return _digest_before(log, len(log.entries))


def verify_control_log(log: ControlLog) -> str | None:
    """Return the first contradiction in a control log; `None` if its digests are consistent."""
    for n, entry in enumerate(entries_of(log)):
        if entry.previous != _digest_before(log, n):
            return f"entry {n} does not follow the one before it: an entry was changed, added or removed"
    return None


# -------------------------------------------------------------------- flags


class Flags(Struct, frozen=True):
    """The latest setting of each flag in the control log, even if it has expired."""

    for_all: Mapping[str, Switch] = {}
    for_one: Mapping[tuple[str, str], Switch] = {}


def flags_of(log: ControlLog) -> Flags:
    """Compute the flags from the entries of a control log."""
    for_all: dict[str, Switch] = {}
    for_one: dict[tuple[str, str], Switch] = {}
    for entry in entries_of(log):
        switch = entry.switch
        if switch.kind != "flag" or entry.refused is not None:
            continue
        if switch.saga is None:
            for_all[switch.flag] = switch
        else:
            for_one[switch.flag, switch.saga] = switch
    return Flags(for_all, for_one)


def is_on(flags: Flags, flag: str, saga: str, now_ms: int) -> bool:
    """Return whether a flag is on for a saga.

    A setting for this saga takes precedence. Otherwise the share for all sagas decides. A saga that belongs to one
    share of a flag also belongs to every larger share of the same flag. Each flag divides the sagas differently.
    """
    for switch in (flags.for_one.get((flag, saga)), flags.for_all.get(flag)):
        if switch is not None and (switch.until is None or now_ms < from_iso(switch.until)):
            return bucket_of(flag, saga) < switch.percent * PARTS / 100
    return False


def bucket_of(flag: str, saga: str) -> int:
    """Return the number of the bucket to which a saga belongs for a flag.

    >>> bucket_of("new_pricing", "order-17") == bucket_of("new_pricing", "order-17") < PARTS
    True
    """
    return int.from_bytes(blake2b(f"{flag}|{saga}".encode(), digest_size=8).digest(), "big") % PARTS


# -------------------------------------------------------------------- active controls


class DeclaredNames(NamedTuple):
    """Names that a service declares, to which controls may refer."""

    handlers: Collection[str]
    compensations: Collection[str]
    deadlines: Collection[str]
    resources: Collection[str]
    events: Mapping[str, Collection[str]]
    """The consumed event types. Each is mapped to the handlers for which its messages may be routed to the dead
    letters. Compensations are left out."""
    flags: Collection[str] | None = None
    """The flags that the service's code reads; `None` if they are not known."""


class ActiveControls(Struct, frozen=True):
    """All controls that were set and not ended by an operator, including those whose time has passed."""

    flags: Flags = Flags()
    others: Mapping[Target, ControlEntry] = {}
    """Pauses, limits and routes. Each entry names the operator and the reason."""
    unknown: tuple[str, ...] = ()
    """Kinds of controls that this version does not know and ignores."""


def read_controls(log: ControlLog) -> ActiveControls:
    """Compute the controls of a service from the entries of its control log."""
    others: dict[Target, ControlEntry] = {}
    unknown = set[str]()
    for entry in entries_of(log):
        switch = entry.switch
        if switch.kind not in KINDS:
            unknown.add(switch.kind)
        elif switch.kind != "flag" and entry.refused is None:
            others.pop(target_of(log.service, switch), None)
            if not switch.off:
                others[target_of(log.service, switch)] = entry
    return ActiveControls(flags_of(log), others, tuple(sorted(unknown)))


def target_of(service: str, switch: Switch) -> Target:
    """Return the target of a pause, limit or route."""
    named = ((what, name) for what in TARGETS if (name := getattr(switch, what)) is not None)
    return switch.kind, *next(named, ("service", service))


def is_expired(entry: ControlEntry, now_ms: int) -> bool:
    """Return whether the time of a control has passed."""
    return entry.switch.until is not None and from_iso(entry.switch.until) <= now_ms


def active_entries(controls: ActiveControls, now_ms: int) -> Mapping[Target, ControlEntry]:
    """Return the pauses, limits and routes that are active now."""
    return {target: entry for target, entry in controls.others.items() if not is_expired(entry, now_ms)}


def find_pause(controls: ActiveControls, service: str, name: str, now_ms: int) -> ControlEntry | None:
    """Return the pause that prevents a handler, compensation or deadline from beginning a run: its own pause, or else
    the pause of the whole service. Return `None` if it is not paused."""
    return _first(controls, (("pause", "handler", name), ("pause", "service", service)), now_ms)


def find_route(controls: ActiveControls, handler: str, types: Iterable[str], now_ms: int) -> ControlEntry | None:
    """Return the route that sends messages of these types to the dead letters instead of to this handler; `None` if
    there is none."""
    events = [("route", "event", type_) for type_ in types]
    return _first(controls, [("route", "handler", handler), *events], now_ms)


def _first(controls: ActiveControls, targets: Iterable[Target], now_ms: int) -> ControlEntry | None:
    for target in targets:
        entry = controls.others.get(target)
        if entry is not None and not is_expired(entry, now_ms):
            return entry
    return None


def describe_entry(service: str, entry: ControlEntry) -> str:
    """Return a text for operators that says which pause or route prevents something from running."""
    kind, _, name = target_of(service, entry.switch)
    what = "paused" if kind == "pause" else "routed to the dead letters"
    until = "" if entry.switch.until is None else f", until {entry.switch.until}"
    return f"{name} is {what} by {entry.who}: {entry.why}{until}"


def why_refused(service: str, switch: Switch, names: DeclaredNames, controls: ActiveControls) -> str | None:
    """Return all reasons why the service must refuse a control, as one string; `None` if the service can apply it."""
    if switch.kind == "flag":
        return _refuse_unused_flag(switch, names, controls)
    if switch.off:  # its target may no longer be declared
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
    """Return the reason why setting this flag would have no effect. Return `None` if the service's code reads the flag,
    if it is not known which flags the code reads, or if the flag was set before."""
    known = {*controls.flags.for_all, *(flag for flag, _ in controls.flags.for_one)}
    if names.flags is None or switch.flag in names.flags or switch.flag in known:
        return None
    return (
        f"no code here reads the flag {switch.flag!r}; there are {_list_names(names.flags)}: a flag is off until it is "
        "set, so deploy the release that reads it first"
    )


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def describe_switch(switch: Switch) -> str:
    """Describe a setting in one line, as `saga control show` prints it."""
    until = "" if switch.until is None else f" until {switch.until}"
    if switch.kind != "flag":
        return _describe_other(switch) + until
    target = f"for {switch.saga}" if switch.saga is not None else f"for {switch.percent:g} % of the sagas"
    state = "" if switch.saga is None else " on" if switch.percent else " off"
    return f"flag {switch.flag}{state} {target}{until}"


def _describe_other(switch: Switch) -> str:
    """Describe a pause, a limit or a route, or the end of one."""
    _, what, name = target_of("", switch)
    target = f"of {what} {name}" if name else "of the whole service"
    if switch.off:
        return f"no {switch.kind} any more {target}"
    bounds = [f"{switch.rate_per_s:g} a second"] if switch.rate_per_s is not None else []
    bounds += [f"{switch.at_once_max} at once"] if switch.at_once_max is not None else []
    return " ".join([switch.kind, target, *(["to"] if bounds else []), " and ".join(bounds)]).rstrip()
