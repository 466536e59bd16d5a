"""Declare handlers, deadlines and compensations: read their parameters, and check the rules for all reactions of one
service together."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from inspect import isasyncgenfunction, iscoroutinefunction, isfunction, ismethod
from types import NoneType
from typing import Literal, get_args, get_origin

from saga.contracts import library
from saga.contracts.library import Contract
from saga.declarations import changes
from saga.declarations.annotations import parse_shape, read_hints, read_parameters, spell, split_union
from saga.declarations.resources import check_not_limited
from saga.declarations.values import Declared, Parameter, Reaction
from saga.errors import DeclarationError
from saga.messages import Event, name_of
from saga.policies.retry import Retry
from saga.view import Saga

TIMEOUT_S = 60.0
"""Seconds that one attempt of a handler may take, unless its declaration sets another time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """Options of a handler, a compensation or a deadline, as given to its decorator."""

    repeats: object = None
    """Annotation of the parameter whose event may come several times in a saga."""
    retry: Retry | None = None
    timeout_s: float = TIMEOUT_S
    low_priority: bool = False
    irreversible: bool = False
    version: int = 1
    undoes: str | None = None
    """Name of the handler that a compensation undoes; `None` for other reactions."""
    within: timedelta | None = None
    """Time after its event at which a deadline is due; `None` for other reactions."""
    unless: tuple[type[Event], ...] = ()
    """Events that cancel a deadline."""
    grace: timedelta | None = None
    """Longest time after its due time that a deadline waits for the log to be handled up to that time; `None` if
    unlimited."""

    @property
    def kind(self) -> Literal["handler", "compensation", "deadline"]:
        """Return whether the declared function is a handler, a compensation or a deadline."""
        if self.within is not None:
            return "deadline"
        return "handler" if self.undoes is None else "compensation"


def make_handler(declared: Declared, function: Callable[..., Awaitable[object]], options: HandlerOptions) -> Reaction:
    """Return the handler, compensation or deadline that a function declares by its signature. Raises `DeclarationError`
    if it cannot work by itself, or together with the other declarations of the service."""
    where = _where(declared, function)
    check_not_limited(function, where)
    check_version(options.version, where)
    found = read_parameters(function, where)
    hints = read_hints(function, where)
    if "return" not in hints:
        raise DeclarationError(f"{where} has no return annotation: say what it emits, `-> None` for nothing")
    shape = parse_shape(hints["return"], where)
    named = (*shape.events, *(option for name in found for option in split_union(hints[name])))
    parameters = tuple(
        changes.make_change_parameter(declared, function, named, (name, hints[name]))
        or _make_parameter(declared, name, hints[name], f"{where}, parameter {name}")
        for name in found
    )
    handler = Reaction(
        kind=options.kind,
        service=declared.name,
        name=function.__name__,
        function=function,
        parameters=parameters,
        emits=shape.events,
        repeats=_find_repeated(declared, options.repeats, parameters, where),
        retry=options.retry,
        timeout_s=options.timeout_s,
        low_priority=options.low_priority,
        irreversible=options.irreversible,
        version=options.version,
        undoes=options.undoes,
        within=options.within,
        unless=options.unless,
        grace=options.grace,
        shape=shape,
    )
    _check_parameters(handler, where)
    changes.check_changes(handler, where)
    _check_repeats(handler, where)
    _check_waits(handler, where)
    for event in handler.emits:
        _check_owner(declared, contract_of(event, f"{where} returns {event.__name__}"), where)
    _check_name(declared, handler)
    _check_kind(declared, handler, where)
    return handler


def check_version(version: object, where: str) -> None:
    """Check the version of a handler. Raises `DeclarationError`."""
    if type(version) is not int or version < 1:
        raise DeclarationError(f"{where}: version={version!r}: give a whole number, 1 for what had none before")


def check_deadline(declared: Declared, within: object, unless: object, where: str) -> None:
    """Check the due time of a deadline and the events that cancel it. Raises `DeclarationError`."""
    if not isinstance(within, timedelta) or not timedelta(0) < within <= declared.retention:
        raise DeclarationError(
            f"{where}: within={within!r}: give a timedelta above zero, and not longer than the service's retention, "
            f"{declared.retention}: afterwards the saga is forgotten"
        )
    if not isinstance(unless, tuple):
        raise DeclarationError(f"{where}: unless={unless!r}: give a tuple of events; of one it is (OrderPaid,)")
    for event in unless:
        if not (isinstance(event, type) and issubclass(event, Event)):
            raise DeclarationError(f"{where}: unless={unless!r}: {event!r} is no event: give classes of events")
        contract_of(event, where)


def check_grace(grace: object, where: str) -> None:
    """Check the longest time that a deadline waits for the log. Raises `DeclarationError`."""
    if grace is not None and (not isinstance(grace, timedelta) or grace < timedelta(0)):
        raise DeclarationError(
            f"{where}: grace={grace!r}: give a timedelta, of zero or more, or leave it out: then the deadline waits "
            "until all that the log held at its due time has been handled"
        )


def check_opener(deadline: Reaction) -> None:
    """Check that a deadline has exactly one event parameter, and that the events of this parameter are not outcomes and
    do not also cancel the deadline. Raises `DeclarationError`."""
    where, events = f"{deadline.service}.{deadline.name}", deadline.needed_events
    if len(events) != 1:
        raise DeclarationError(
            f"{where} has {len(events)} event parameters: a deadline has one, from which its time counts"
        )
    both = _names(events[0]) & _names(deadline.unless)
    if both:
        raise DeclarationError(f"{where}: {min(both)} would open and close it: leave it out of unless=")
    outcomes = [event for event in events[0] if contract_of(event, where).outcome is not None]
    if outcomes:
        raise DeclarationError(
            f"{where} counts from {outcomes[0].__name__}, an outcome, which closes every deadline: "
            "count from an event before it"
        )


def check_alone(declared: Declared, handler: Reaction) -> None:
    """Check that no event is handled twice: if this handler takes a single event, no other handler may take the same
    event as its only one. Raises `DeclarationError`."""
    events = handler.needed_events
    if len(events) > 1:
        return
    for other in declared.handlers:
        shared = _names(events[0]) & _names(other.needed_events[0])
        if len(other.needed_events) == 1 and shared:
            raise DeclarationError(
                f"{declared.name!r} handles {min(shared)} twice: in {other.name} and in {handler.name}. "
                "Keep one, or split the service"
            )


def contract_of(event: type[Event], where: str) -> Contract:
    """Return the contract of an event. Raises `DeclarationError` with a message that begins with `where`."""
    try:
        return library.contract_at_import(event)
    except DeclarationError as why:
        raise DeclarationError(f"{where}: {why}") from why


def guess_variable(declared: Declared) -> str:
    """Guess the name of the variable that holds the service, for examples in messages."""
    return declared.name.replace("-", "_")


def _where(declared: Declared, function: Callable[..., object]) -> str:
    """Return the name of a function for messages. Raises `DeclarationError` if it is not a coroutine function."""
    if not (isfunction(function) or ismethod(function)):
        raise DeclarationError(
            f"{declared.name!r}: {function!r} is no function: a handler is an `async def`; "
            "options are given by name, as in handler(retry=...)"
        )
    where = f"{declared.name}.{function.__name__}"
    if isasyncgenfunction(function):
        raise DeclarationError(f"{where} yields: a handler returns its events, several as a tuple or a list")
    if not iscoroutinefunction(function):
        raise DeclarationError(f"{where} is not async: write `async def {function.__name__}`")
    return where


def _make_parameter(declared: Declared, name: str, annotation: object, where: str) -> Parameter:
    options = split_union(annotation)
    if any(o is Saga or get_origin(o) is Saga for o in options):
        _check_saga(declared, annotation, where)
        return Parameter(name=name, role="saga")
    events = [o for o in options if isinstance(o, type) and issubclass(o, Event)]
    optional = NoneType in options
    if events and len(events) + optional == len(options):
        for event in events:
            if event is Event:
                raise DeclarationError(f"{where}: it would take any Event; name the events it reacts to, A | B")
            contract_of(event, where)
        return Parameter(name=name, role="event", events=tuple(events), optional=optional)
    gives = next((r.gives for r in declared.resources if r.gives is options[0] and len(options) == 1), None)
    if gives is not None:
        return Parameter(name=name, role="resource", gives=gives)
    raise DeclarationError(f"{where}: {_describe_unknown(declared, annotation, events)}")


def _check_saga(declared: Declared, annotation: object, where: str) -> None:
    """Check the annotation of the parameter that receives the saga: `Saga`, or `Saga[X]` with the state class of the
    service."""
    option, *others = split_union(annotation)
    if others:
        raise DeclarationError(f"{where}: it is {spell(annotation)}, but a saga is always there: write Saga")
    states = get_args(option) or (NoneType,)
    if states[0] not in (NoneType, declared.state):
        remedy = (
            f"Saga[{declared.state.__name__}]" if declared.state else f"Saga, or Service({declared.name!r}, state=...)"
        )
        raise DeclarationError(
            f"{where}: it is {spell(annotation)}, but the state of {declared.name!r} is "
            f"{declared.state.__name__ if declared.state else 'none'}: write {remedy}"
        )


def _describe_unknown(declared: Declared, annotation: object, events: Sequence[type[Event]]) -> str:
    """Describe the problem of an annotation that is neither an event nor a saga nor a resource, and what to do about
    it."""
    if events:
        return f"{spell(annotation)} mixes events with what is none: give each a parameter of its own"
    inside = [a for a in get_args(annotation) if isinstance(a, type) and issubclass(a, Event)]
    if inside:
        return (
            f"it takes {spell(annotation)}, but is given one event at a time (a compensation one result): "
            f"annotate it with {_either(inside)}"
        )
    asked = [o for o in split_union(annotation) if isinstance(o, type) and get_origin(o) is None]
    for resource in declared.resources:
        # Compares `__mro__`, because `issubclass` fails on protocols, and a protocol may be the annotation, too.
        if any(o in resource.gives.__mro__ or resource.gives in o.__mro__ for o in asked):
            return f"nothing gives a {spell(annotation)}; {resource.name} gives {spell(resource.gives)}: annotate it so"
    return (
        f"nothing gives a {spell(annotation)}: it is no event, and no resource of {declared.name!r} yields one. "
        f"Declare it above this function: an async generator that yields it, with @{guess_variable(declared)}.resource"
    )


def _check_parameters(handler: Reaction, where: str) -> None:
    """Check that there is at least one event parameter, at most one saga parameter, and no event in two parameters."""
    if not handler.needed_events:
        absent = "; one that may be `None` is not waited for" if handler.taken_events else ""
        raise DeclarationError(f"{where} reacts to nothing: give it a parameter annotated with an event{absent}")
    if sum(p.role == "saga" for p in handler.parameters) > 1:
        raise DeclarationError(f"{where} has two parameters that are the saga: keep one")
    taken: dict[str, str] = {}
    for parameter in handler.parameters:
        for event in parameter.events:
            name = name_of(event)
            if name in taken:
                places = "twice" if taken[name] == parameter.name else f"in {taken[name]} and in {parameter.name}"
                raise DeclarationError(f"{where} takes {name} {places}: one message is one part; keep one")
            taken[name] = parameter.name


def _find_repeated(
    declared: Declared, repeats: object, parameters: Sequence[Parameter], where: str
) -> tuple[type[Event], ...]:
    """Return the events of the parameter that `repeats=` names. Raises `DeclarationError` if no parameter has that
    annotation."""
    if repeats is None:
        return ()
    for parameter in parameters:
        if parameter.role == "event" and _is_named(repeats, parameter):
            return parameter.events
    wanted = ", ".join(f"repeats={_show_parameter(p)}" for p in parameters if p.role == "event" and not p.optional)
    raise DeclarationError(
        f"{where}: repeats={spell(repeats)}: no parameter is annotated with that: name the event that may come several "
        f"times in a saga as its parameter does, {wanted}"
    )


def _is_named(repeats: object, parameter: Parameter) -> bool:
    """Return whether `repeats=` names the annotation of this parameter."""
    kind = changes.kind_of(parameter.events[0])
    if kind is not None:
        return changes.document_class_in(repeats) is kind.kind
    return frozenset(split_union(repeats)) == frozenset(parameter.events)


def _show_parameter(parameter: Parameter) -> str:
    kind = changes.kind_of(parameter.events[0])
    return _either(parameter.events) if kind is None else f"Change[{kind.kind.__name__}]"


def _check_repeats(handler: Reaction, where: str) -> None:
    """Check that the event in `repeats=` can come more than once, if the handler takes other events, too. An event that
    starts the saga comes only once."""
    others = [events for events in handler.needed_events if events != handler.repeats]
    starts = all(contract_of(event, where).starts and not changes.is_change(event) for event in handler.repeats)
    if handler.repeats and others and starts:
        raise DeclarationError(
            f"{where} has repeats={_either(handler.repeats)}, but that event starts the saga and comes once: name "
            f"the one that may come several times (repeats={_either(others[0])}), or leave out repeats="
        )


def _check_waits(handler: Reaction, where: str) -> None:
    """Check that a handler may wait for each of its optional events, and that each event for which it may wait is an
    optional parameter."""
    assert handler.shape is not None
    optional = [event for p in handler.parameters if p.optional for event in p.events]
    awaited, absent = _names(handler.shape.awaited_events), _names(optional)
    if handler.kind == "compensation" and not handler.may_wait:
        return  # optional parameters of a compensation are checked with its original handler
    if handler.kind != "handler" and (handler.may_wait or optional):
        what = f"takes {_either(optional)} | None" if optional else "returns Later"
        raise DeclarationError(
            f"{where} {what}: only a handler of events may continue later; a {handler.kind} has to finish in one run"
        )
    if absent - awaited:
        name = min(absent - awaited)
        raise DeclarationError(
            f"{where} takes {name} | None and never waits for it: a handler runs as soon as the events are there that "
            f"it needs. Leave out `| None`, handle {name} in a handler of its own, or let it return Later[{name}]"
        )
    if awaited - absent:
        name = min(awaited - absent)
        raise DeclarationError(
            f"{where} returns Later[{name}] and could not be shown it: give it a parameter `{name} | None`"
        )
    if optional and handler.repeats:
        raise DeclarationError(
            f"{where} has repeats= and takes {_either(optional)} | None: it would be unknown for which of its runs "
            "that event is. Leave out repeats=, or let another handler keep what the event says in the state"
        )


def _check_owner(declared: Declared, contract: Contract, where: str) -> None:
    if contract.owner != declared.name and not contract.produced_externally:
        raise DeclarationError(
            f"{where} returns {contract.name}, which only its owner {contract.owner!r} may say: return an event of "
            f"{declared.name!r}, or let {contract.owner!r} react to one and decide{_advise_renamed(declared, contract)}"
        )


def _check_name(declared: Declared, handler: Reaction) -> None:
    if any(h.name == handler.name for h in declared.reactions):
        raise DeclarationError(
            f"{declared.name!r} has two functions called {handler.name}: names are part of ids; rename one"
        )


def _check_kind(declared: Declared, handler: Reaction, where: str) -> None:
    """Check that all events of a service belong to one kind of saga: the key fields of their contracts must have the
    same name."""
    first = next(iter(declared.reactions), handler)
    known = first.needed_events[0][0]
    kind = contract_of(known, where).key
    for event in (*handler.consumed_events, *handler.emits):
        key = contract_of(event, where).key
        if key != kind:
            raise DeclarationError(
                f"{where} names {event.__name__}, of sagas known by {key!r}, but {known.__name__} is of sagas known by "
                f"{kind!r}: a service follows one kind of saga; use events of one kind, or split the service"
            )


def _names(events: Iterable[type[Event]]) -> frozenset[str]:
    return frozenset(map(name_of, events))


def _either(events: Iterable[type[Event]]) -> str:
    return " | ".join(event.__name__ for event in events)


def _advise_renamed(declared: Declared, contract: Contract) -> str:
    """Return advice for a contract whose owner is the new name of a renamed service: contracts must keep the first
    name, under which everything of the service is stored. Return an empty string for any other contract."""
    if contract.owner != declared.renamed:
        return ""
    return f"; {declared.renamed!r} was {declared.name!r}, and stays the owner {declared.name!r} in its contracts"


# -------------------------------------------------------------------- compensations


def find_original(declared: Declared, original: Callable[..., object]) -> Reaction:
    """Return the handler that was declared with the function `original`. Raises `DeclarationError` if it is not a
    handler of the service."""
    name = getattr(original, "__name__", repr(original))
    # Not `is`: each access to a bound method makes another object, and these are equal.
    found = next((h for h in declared.handlers if h.function == original), None)
    if found is None:
        raise DeclarationError(
            f"{name} is no handler of {declared.name!r}, so it cannot have a compensation here: "
            f"declare it above with @{guess_variable(declared)}.handler; each service undoes its own work only. "
            f"If {name} is what undoes, say what: @{guess_variable(declared)}.compensation(the_handler)"
        )
    return found


def check_can_be_compensated(declared: Declared, original: Reaction) -> None:
    """Check that the handler has no compensation yet, and can be undone. Raises `DeclarationError`."""
    other = next((c for c in declared.compensations if c.undoes == original.name), None)
    if other is not None:
        raise DeclarationError(f"{declared.name}.{original.name} already has a compensation, {other.name}: keep one")
    if original.irreversible:
        raise DeclarationError(
            f"{declared.name}.{original.name} is declared irreversible: leave that out, or the compensation"
        )


def make_compensation(declared: Declared, original: Reaction, compensation: Reaction) -> Reaction:
    """Check a compensation. Return it with `of_original` set for each parameter that takes an event of its original
    handler.

    Raises `DeclarationError` unless it takes a failure outcome and a result of `original`, takes no other events than
    those that `original` took, and emits no outcome.
    """
    where = f"{declared.name}.{compensation.name}"
    rule = (
        f"a compensation takes the failure outcome it acts on and the result of {original.name} that it undoes, and "
        "may take the events that it took"
    )
    events = [p for p in compensation.parameters if p.role == "event"]
    needed = {_list_failures(events) for events in original.needed_events}
    failures = [p for p in events if all(contract_of(e, where).outcome == "failure" for e in p.events)]
    others = [p for p in events if p not in failures[:1]]
    took = [p for p in others if _list_failures(p.events) in needed]
    results = [p for p in others if p not in took] or took[:1]
    took = [p for p in took if p not in results]
    no_other = f"{where} has {len(events)} event parameters: {rule}; no other events"
    if len(events) < 2:
        raise DeclarationError(no_other)
    if not failures:
        raise DeclarationError(
            f"{where}: neither {_list_outcomes(events[0].events)} nor {_list_outcomes(events[1].events)} is an outcome "
            f'"failure" by its contract: {rule}; it reacts to the outcome, not to the failure of another service'
        )
    if len(failures) == 2:
        raise DeclarationError(f'{where}: both events are outcomes "failure", and a saga has only one outcome: {rule}')
    if len(results) != 1:
        raise DeclarationError(no_other)
    (result,), failure = results, failures[0]
    if result.optional or failure.optional:
        absent = result if result.optional else failure
        raise DeclarationError(
            f"{where} takes {_list_outcomes(absent.events)} | None: outcome and result are always there; only what "
            f"{original.name} took may be absent, of what was done before this release"
        )
    _check_compensation_can_run(failure.events, result.events, original, where)
    strange = sorted(_list_failures(result.events) - _list_failures(original.emits))
    if strange:
        raise DeclarationError(
            f"{where}: {original.name} never returns {' or '.join(strange)}: {rule}, "
            f"so one of {_list_outcomes(original.emits) or 'nothing: it emits no event'}"
        )
    for event in compensation.emits:
        if contract_of(event, where).outcome is not None:
            raise DeclarationError(
                f"{where} returns {event.__name__}, an outcome: when a compensation runs the saga has ended; "
                "let a handler decide"
            )
    return replace(
        compensation,
        parameters=tuple(replace(p, of_original=True) if p in took else p for p in compensation.parameters),
    )


def _check_compensation_can_run(
    failures: Iterable[type[Event]], results: Iterable[type[Event]], original: Reaction, where: str
) -> None:
    """Check that the result which a compensation undoes and the outcome to which it reacts can occur in the same saga.
    Raises `DeclarationError`."""
    for event in results:
        if contract_of(event, where).outcome == "success":
            raise DeclarationError(
                f'{where} wants {event.__name__}, an outcome "success": a saga with this outcome does not fail, '
                f"so there is nothing to undo; leave the compensation out, or let it undo what {original.name} returns "
                "before the saga is decided"
            )
    for taken in original.needed_events:
        if _list_failures(taken) <= _list_failures(failures):
            raise DeclarationError(
                f"{where} wants what {original.name} did, but {original.name} reacts to {_list_outcomes(taken)} "
                "itself, on "
                "which it is undone: what is done because a saga failed is not undone; leave the compensation out"
            )


def _list_failures(events: Iterable[type[Event]]) -> frozenset[str]:
    return frozenset(map(name_of, events))


def _list_outcomes(events: Iterable[type[Event]]) -> str:
    return " | ".join(event.__name__ for event in events)
