"""Compensations: which handler each undoes, and the rules for what it takes."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from saga.declarations.handlers import contract_of, variable
from saga.declarations.values import Declared, Reaction
from saga.errors import DeclarationError
from saga.messages import Event, name_of


def original_of(declared: Declared, original: Callable[..., object]) -> Reaction:
    """Handler that `original` was declared as. Raises `DeclarationError` if there is none."""
    name = getattr(original, "__name__", repr(original))
    found = next((h for h in declared.handlers if h.function is original), None)
    if found is None:
        raise DeclarationError(
            f"{name} is no handler of {declared.name!r}, so it cannot have a compensation here: "
            f"declare it above with @{variable(declared)}.handler; each service undoes its own work only. "
            f"If {name} is what undoes, say what: @{variable(declared)}.compensation(the_handler)"
        )
    return found


def check_undone_once(declared: Declared, original: Reaction) -> None:
    """Check that nothing undoes this handler already. Raises `DeclarationError`."""
    other = next((c for c in declared.compensations if c.undoes == original.name), None)
    if other is not None:
        raise DeclarationError(f"{declared.name}.{original.name} already has a compensation, {other.name}: keep one")


def undoing(declared: Declared, original: Reaction, compensation: Reaction) -> Reaction:
    """The compensation, with what it takes of its original marked as that. Checks that it takes a failure outcome and
    a result of `original`, and besides only what that took, and emits no outcome. Raises `DeclarationError`."""
    where = f"{declared.name}.{compensation.name}"
    rule = (
        f"a compensation takes the failure outcome it acts on and the result of {original.name} that it undoes, and "
        "may take the events that it took"
    )
    events = [p for p in compensation.parameters if p.role == "event"]
    needed = {_names(events) for events in original.needed_events}
    failures = [p for p in events if all(contract_of(e, where).outcome == "failure" for e in p.events)]
    others = [p for p in events if p not in failures[:1]]
    took = [p for p in others if _names(p.events) in needed]
    results = [p for p in others if p not in took] or took[:1]
    took = [p for p in took if p not in results]
    no_other = f"{where} has {len(events)} event parameters: {rule}; no other events"
    if len(events) < 2:
        raise DeclarationError(no_other)
    if not failures:
        raise DeclarationError(
            f'{where}: neither {_either(events[0].events)} nor {_either(events[1].events)} is an outcome "failure" by '
            f"its contract: {rule}; a neighbour's failure is not for it, the outcome is"
        )
    if len(failures) == 2:
        raise DeclarationError(f'{where}: both events are outcomes "failure", and an outcome stands: {rule}')
    if len(results) != 1:
        raise DeclarationError(no_other)
    (result,), failure = results, failures[0]
    if result.optional or failure.optional:
        absent = result if result.optional else failure
        raise DeclarationError(
            f"{where} takes {_either(absent.events)} | None: outcome and result are always there; only what "
            f"{original.name} took may be absent, of what was done before this release"
        )
    _check_ever_undone(failure.events, result.events, original, where)
    strange = sorted(_names(result.events) - _names(original.emits))
    if strange:
        raise DeclarationError(
            f"{where}: {original.name} never returns {' or '.join(strange)}: {rule}, "
            f"so one of {_either(original.emits) or 'nothing: it emits no event'}"
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


def _check_ever_undone(
    failures: Iterable[type[Event]], results: Iterable[type[Event]], original: Reaction, where: str
) -> None:
    """Check that the result which a compensation wants and the outcome it acts on can meet. Raises
    `DeclarationError`."""
    for event in results:
        if contract_of(event, where).outcome == "success":
            raise DeclarationError(
                f'{where} wants {event.__name__}, an outcome "success": a saga in which that was said does not fail, '
                f"so there is nothing to undo; leave the compensation out, or let it undo what {original.name} returns "
                "before the saga is decided"
            )
    for taken in original.needed_events:
        if _names(taken) <= _names(failures):
            raise DeclarationError(
                f"{where} wants what {original.name} did, but {original.name} reacts to {_either(taken)} itself, on "
                "which it is undone: what is done because a saga failed stands; leave the compensation out"
            )


def _names(events: Iterable[type[Event]]) -> frozenset[str]:
    return frozenset(map(name_of, events))


def _either(events: Iterable[type[Event]]) -> str:
    return " | ".join(event.__name__ for event in events)
