"""Whole choreographies under Hypothesis: it chooses what is published, when, and what goes wrong where, and shrinks it.

Needs hypothesis: `pip install saga-choreography[testing]`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Final, get_args

try:
    from hypothesis import HealthCheck, settings
    from hypothesis import strategies as st
    from hypothesis.errors import HypothesisException, StopTest
    from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
except ImportError as why:
    hint = "saga.testing.stateful needs hypothesis: pip install saga-choreography[testing]"
    raise ImportError(hint, name=why.name) from why

from saga.errors import SagaError
from saga.messages import Event
from saga.service import Service
from saga.testing.faults import KINDS, Faults, Kind, faults
from saga.testing.simulation.plan import POSSIBLE, Operation, Planned
from saga.testing.simulation.timeline import timeline
from saga.testing.simulation.workers import Accident
from saga.testing.simulation.world import WORKERS, Broken, SimulatedWorld
from saga.testing.world import NO_DOCUMENTS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SETTINGS: Final = settings(
    max_examples=50,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
"""Of a choreography that says nothing else. An example is a world, which takes a tenth of a second or so."""
OPERATION_MAX = 30
"""A fault is planted no further ahead than this: an order makes a worker ask for about ten things."""
SECONDS = st.integers(1, 200).map(lambda ms: ms / 1000) | st.sampled_from((1, 5, 30, 600, 86_400))
"""How long the world runs between two steps: moments in the middle of everything, and pauses."""
MANNERS: Final[Mapping[str, tuple[Kind, bool]]] = {
    **{kind: (kind, False) for kind in KINDS if kind not in ("crash", "partition")},
    "crash before": ("crash", False),
    "crash after": ("crash", True),
    "partition": ("partition", True),
    "partition of all": ("partition", False),
}
"""What a fault is called here, and what a plan makes of it."""
ACCIDENTS: Final[Sequence[Accident]] = get_args(Accident)


class Ahead:
    """A plan that grows while the world runs: each fault waits for an operation that has yet to come."""

    def __init__(self, rules: Faults) -> None:
        self._rules = tuple(rule for rule in rules.rules if rule.rate)
        self._waiting: list[_Waiting] = []

    def plant(self, process: str, manner: str, operation: int) -> None:
        """The `operation`-th operation from now on to which this can happen."""
        self._waiting.append(_Waiting(process, *MANNERS[manner], operation))

    def at(self, operation: Operation, now_s: float) -> Planned | None:
        """See `Plan`."""
        due: _Waiting | None = None
        for waiting in self._waiting:
            if waiting.process == operation.process and self._can(waiting.kind, operation, now_s):
                waiting.left -= waiting.left > 0
                if due is None and not waiting.left:
                    due = waiting
        if due is None:
            return None
        self._waiting.remove(due)
        return Planned(operation.process, operation.number, due.kind, due.after)

    def _can(self, kind: Kind, operation: Operation, now_s: float) -> bool:
        names = (operation.service, *operation.names)
        return operation.what in POSSIBLE[kind] and any(
            rule.kind == kind
            and rule.hits(names)
            and (rule.window_s is None or rule.window_s[0] <= now_s < rule.window_s[1])
            for rule in self._rules
        )
