"""A progress to look at: what tools and tests are given to read. Nobody writes it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from typing_extensions import TypeVar

from saga.progress.document import Outcome, Snapshot, decode_entry

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_S = TypeVar("_S", bound="DataclassInstance | None", default=None)
_S_co = TypeVar("_S_co", bound="DataclassInstance | None", default=None, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Transition:
    """One entry of a progress, for people and tests."""

    handler: str
    outcome: Outcome
    reason: str | None
    """Reason for which it was ignored, is waiting, or died; `None` if handled."""


@dataclass(frozen=True, kw_only=True)
class Progress(Generic[_S_co]):
    """Progress of one saga in one service, to look at: tools and tests read it, nobody writes it."""

    service: str
    saga_id: str
    state: _S_co
    transitions: tuple[Transition, ...]
    """Oldest first; archived ones are left out."""


def looked_at(p: Snapshot, state: _S) -> Progress[_S]:
    """A progress document as it is shown, with the state as the service's class."""
    transitions = tuple(
        Transition(handler=entry.handler, outcome=entry.outcome, reason=entry.reason)
        for entry in map(decode_entry, p.transitions)
    )
    return Progress(service=p.service, saga_id=p.saga, state=state, transitions=transitions)
