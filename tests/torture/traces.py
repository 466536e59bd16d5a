"""Traces that accidents leave in the histories: without them a run has shown less than its accidents promise."""

from collections.abc import Iterator, Mapping

from saga.ops.histories import SagaHistory
from services.audit.checks import Check

Histories = Mapping[str, Mapping[str, SagaHistory]]
"""Histories by service and order."""
DECIDES, DEADLINE = "order", "expire"
"""Service that ends orders, and its deadline."""
CURED = "payment"
CURES_MANY = 40
"""Requested replays of which at least one is executed: of a few, every order may be cancelled before."""


def expired(histories: Histories) -> Iterator[str]:
    """Orders that their deadline has ended."""
    for id_, history in histories[DECIDES].items():
        if any((entry.handler, entry.outcome) == (DEADLINE, "handled") for entry in history.entries):
            yield id_


def replayed(histories: Histories) -> Iterator[str]:
    """Orders of which a dead letter was replayed: for each replay one."""
    for id_, history in histories[CURED].items():
        yield from (id_ for entry in history.entries if entry.outcome == "replayed")


def traces(histories: Histories, *, silences: int, cures: int) -> list[Check]:
    """Check that deadlines and replays were among what happened. `silences`: times that the bank was silent for longer
    than an order waits, with nothing beside it; `cures`: dead letters of which a replay was asked for."""
    ended, again = len(list(expired(histories))), len(list(replayed(histories)))
    return [
        Check(
            name="deadlines end unanswered orders",
            figures=f"{ended} orders expired, {silences} silences were longer than an order waits",
            differences=("not one order expired",) if silences and not ended else (),
        ),
        Check(
            name="what is replayed is handled",
            figures=f"{again} replays, of {cures} dead letters",
            differences=("no replay was executed",) if cures >= CURES_MANY and not again else (),
        ),
    ]
