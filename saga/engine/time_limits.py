"""Times of a service that do not go together: how long it may wait, how long it remembers, how long topics are kept."""

from collections.abc import Iterator
from datetime import timedelta

from saga.contracts.library import binding_of
from saga.declarations.values import Declared, Reaction
from saga.engine.prepared_service import reads_of
from saga.policies.retry import RETRY, Retry

DAY_S = 86_400


def misfits(declared: Declared) -> tuple[str, ...]:
    """All of them, for people: nothing is lost here, but others have forgotten the saga, or this service has."""
    return (*_long_waits(declared), *_long_topics(declared))


def span_s(retry: Retry) -> float:
    """Seconds that all attempts take together, without what each takes.

    >>> span_s(Retry(attempts_max=4, delay_s_first=1, delay_s_max=2)), span_s(Retry(attempts_max=1))
    (5.0, 0.0)
    """
    delays = (retry.delay_s_first * 2.0 ** min(before, 64) for before in range(min(retry.attempts_max, 10_000) - 1))
    return float(sum(min(delay, retry.delay_s_max) for delay in delays))


def _long_waits(declared: Declared) -> Iterator[str]:
    """Attempts of handlers; a deadline that is longer is refused where it is declared."""
    memory = declared.retention
    for handler in declared.reactions:
        wait = timedelta(seconds=sum(span_s(retry) for retry in _rules_of(declared, handler)))
        if handler.undoes is None and wait >= memory:
            yield (
                f"the attempts of {handler.name} take up to {wait}, and {declared.name} remembers a saga for {memory}: "
                "what it says then is of a saga that others may have forgotten; raise retention=, or let it fail sooner"
            )


def _rules_of(declared: Declared, handler: Reaction) -> Iterator[Retry]:
    """Rules under which its attempts may fail. Those of each are counted apart: they can follow one another."""
    rules = [handler.retry or declared.retry or RETRY]
    if handler.retry is None:
        taken = {parameter.gives for parameter in handler.parameters if parameter.role == "resource"}
        rules += [r.retry for r in declared.resources if r.retry is not None and r.gives in taken]
    for rule in rules:
        yield rule
        yield from rule.by.values()


def _long_topics(declared: Declared) -> Iterator[str]:
    topics = {name: topic for h in declared.reactions for e in h.hears for name, topic in _topics_of(e).items()}
    retention_s = declared.retention.total_seconds()
    for name in sorted(reads_of(declared) & topics.keys()):
        days = topics[name]
        if days is None or days * DAY_S > retention_s:
            kept = "for ever" if days is None else f"for {days:g} days"
            yield (
                f"the topic {name} keeps records {kept}, and {declared.name} remembers a saga for "
                f"{declared.retention}: reading the topic again would handle older records twice; raise retention=, or "
                "lower retention_days in its topic.json"
            )


def _topics_of(event: type) -> dict[str, float | None]:
    binding = binding_of(event)
    name = binding.contract.topic
    return {name: binding.library.topics[name].retention_days}
