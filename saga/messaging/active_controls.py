"""Controls that are in force: what the entries of a service's book make of flags, pauses, limits and routes. Pure.

The last word on each thing counts, in the order of the book, which is that of the log: a wish that comes twice stands
there once, at its first place. So a pause that comes again after its end pauses nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from saga.messaging.controls import KINDS, WHOM, Book, Flags, Noted, Switch, entries_of, flags_of
from saga.support.clock import from_iso

Target = tuple[str, str, str]
"""Kind of a switch, and what it is for: `handler`, `event`, `resource` or `service`, with the name."""


class Names(NamedTuple):
    """Names that a service declares: what people may mean."""

    handlers: Collection[str]
    compensations: Collection[str]
    deadlines: Collection[str]
    resources: Collection[str]
    events: Mapping[str, Collection[str]]
    """Each type that it consumes, with the handlers that may be given dead letters of it: no compensation."""
    flags: Collection[str] | None = None
    """Flags for which its code asks; `None`: they cannot be told."""


class InForce(Struct, frozen=True):
    """All that is switched, those whose time is over included."""

    flags: Flags = Flags()
    others: Mapping[Target, Noted] = {}
    """Pauses, limits and routes that were not ended, each with who switched it, and why."""
    unknown: tuple[str, ...] = ()
    """Kinds of switches that this version does not know, and leaves alone."""


def in_force(book: Book) -> InForce:
    """Controls as the entries of a book make them."""
    others: dict[Target, Noted] = {}
    unknown = set[str]()
    for entry in entries_of(book):
        switch = entry.switch
        if switch.kind not in KINDS:
            unknown.add(switch.kind)
        elif switch.kind != "flag" and entry.refused is None:
            others.pop(target_of(book.service, switch), None)
            if not switch.off:
                others[target_of(book.service, switch)] = entry
    return InForce(flags_of(book), others, tuple(sorted(unknown)))


def target_of(service: str, switch: Switch) -> Target:
    """Target of a pause, limit or route."""
    named = ((what, name) for what in WHOM if (name := getattr(switch, what)) is not None)
    return switch.kind, *next(named, ("service", service))


def is_over(entry: Noted, now_ms: int) -> bool:
    """True if the time of a switch is over."""
    return entry.switch.until is not None and from_iso(entry.switch.until) <= now_ms


def active(controls: InForce, now_ms: int) -> Mapping[Target, Noted]:
    """Pauses, limits and routes of now."""
    return {target: entry for target, entry in controls.others.items() if not is_over(entry, now_ms)}


def pause_of(controls: InForce, service: str, name: str, now_ms: int) -> Noted | None:
    """Pause because of which a handler or compensation begins nothing: its own, else that of the service."""
    return _first(controls, (("pause", "handler", name), ("pause", "service", service)), now_ms)


def route_of(controls: InForce, handler: str, types: Iterable[str], now_ms: int) -> Noted | None:
    """Route because of which a handler's messages, of these types, are dead letters."""
    events = [("route", "event", type_) for type_ in types]
    return _first(controls, [("route", "handler", handler), *events], now_ms)


def _first(controls: InForce, targets: Iterable[Target], now_ms: int) -> Noted | None:
    for target in targets:
        entry = controls.others.get(target)
        if entry is not None and not is_over(entry, now_ms):
            return entry
    return None


def words_of(service: str, entry: Noted) -> str:
    """Reason, for people, that something does not run."""
    kind, _, name = target_of(service, entry.switch)
    what = "paused" if kind == "pause" else "routed to the dead letters"
    until = "" if entry.switch.until is None else f", until {entry.switch.until}"
    return f"{name} is {what} by {entry.who}: {entry.why}{until}"


def refusal(service: str, switch: Switch, names: Names, controls: InForce) -> str | None:
    """Why the service does not do what a switch wants, all reasons together; `None` if it does."""
    if switch.kind == "flag":
        return _refuse_unused_flag(switch, names, controls)
    if switch.off:  # what it is for may not be declared any more
        if target_of(service, switch) in controls.others:
            return None
        there = [name for kind, _, name in controls.others if kind == switch.kind]
        return f"there is no {switch.kind} of {target_of(service, switch)[2]} to be ended; there are {_listed(there)}"
    wrong = list[str]()
    runs = (*names.handlers, *names.compensations, *names.deadlines)
    if switch.handler is not None and switch.handler not in runs:
        wrong.append(f"there is no handler {switch.handler!r}; there are {_listed(runs)}")
    if switch.resource is not None and switch.resource not in names.resources:
        wrong.append(f"there is no resource {switch.resource!r}; there are {_listed(names.resources)}")
    if switch.event is not None and switch.event not in names.events:
        wrong.append(f"it takes no event {switch.event!r}; it takes {_listed(names.events)}")
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


def _refuse_unused_flag(switch: Switch, names: Names, controls: InForce) -> str | None:
    """Why a flag would switch nothing; `None` if the service asks for it, or it is set already."""
    known = {*controls.flags.for_all, *(flag for flag, _ in controls.flags.for_one)}
    if names.flags is None or switch.flag in names.flags or switch.flag in known:
        return None
    return (
        f"nothing here asks for flag {switch.flag!r}; there are {_listed(names.flags)}: a flag is off until it is set, "
        "so deploy the release that asks for it first"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def in_words(switch: Switch) -> str:
    """Switch in words, as `saga control show` prints it."""
    until = "" if switch.until is None else f" until {switch.until}"
    if switch.kind != "flag":
        return _words_of_other(switch) + until
    whom = f"for {switch.saga}" if switch.saga is not None else f"for {switch.percent:g} % of the sagas"
    state = "" if switch.saga is None else " on" if switch.percent else " off"
    return f"flag {switch.flag}{state} {whom}{until}"


def _words_of_other(switch: Switch) -> str:
    """A pause, a limit or a route in words, or that it has ended."""
    _, what, name = target_of("", switch)
    whom = f"of {what} {name}" if name else "of the whole service"
    if switch.off:
        return f"no {switch.kind} any more {whom}"
    said = [f"{switch.rate_per_s:g} a second"] if switch.rate_per_s is not None else []
    said += [f"{switch.at_once_max} at once"] if switch.at_once_max is not None else []
    return " ".join([switch.kind, whom, *(["to"] if said else []), " and ".join(said)]).rstrip()
