"""Test choreographies with Hypothesis. It chooses which events are published and when, and which faults happen and
where. It also shrinks a failure.

Needs hypothesis: `pip install saga-choreography[testing]`.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, get_args

try:
    from hypothesis import HealthCheck, Phase, currently_in_test_context, settings
    from hypothesis import event as counted
    from hypothesis import strategies as st
    from hypothesis.errors import HypothesisException, StopTest
    from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
except ImportError as why:
    hint = "saga.testing.stateful needs hypothesis: pip install saga-choreography[testing]"
    raise ImportError(hint, name=why.name) from why

from saga.errors import SagaError
from saga.messages import Event
from saga.service import Service
from saga.telemetry.events import DeadLettered
from saga.testing.fault_plans import KINDS, POSSIBLE, VARIANTS, FaultKind, Faults, Operation, PlannedFault, faults
from saga.testing.simulation.network import TraceNote
from saga.testing.simulation.reports import timeline
from saga.testing.simulation.simulated_world import WORKERS, SimulatedWorld
from saga.testing.simulation.workers import Accident
from saga.testing.world import NO_DOCUMENTS, CheckFailed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SETTINGS: Final = settings(
    max_examples=50,
    stateful_step_count=8,
    deadline=None,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
"""Default settings of a `Choreography`.

An example is one world, which takes a tenth of a second or less. There are few steps, because an example with fewer
steps shrinks better. Only one failure is reported, because one bug usually breaks several invariants. The explain phase
is off because it takes long and would only name lines of the kit.
"""
OPERATION_MAX = 12
"""How many operations ahead a fault can be planned, at most. A single order makes a worker perform about ten
operations.
"""
FAULTS_MAX = 4
"""Maximum number of faults planned at the beginning."""
SECONDS = st.integers(1, 200).map(lambda ms: ms / 1000) | st.sampled_from((1.0, 5.0, 30.0, 600.0, 86_400.0))
"""Durations in seconds for which the world runs between two steps: short ones that end in the middle of the work, and
long pauses.
"""
MANNERS: Final[Mapping[str, tuple[FaultKind, bool]]] = {
    f"{kind}{way}": (kind, bool(after)) for kind in KINDS for after, way in enumerate(VARIANTS.get(kind, ("",)))
}
"""The names of faults in schedules, each with its kind, and True if it is the second variant (see
`PlannedFault.after`).
"""
ACCIDENTS: Final[tuple[Accident, ...]] = get_args(Accident)


class Choreography(RuleBasedStateMachine):
    """A state machine that tests a choreography, in a new world for each example: Hypothesis writes the test, you say
    what must hold.

    ```python
    class Shop(Choreography):
        services = (order, payment, inventory, shipping)
        published = (events(OrderPlaced, order_id=st.sampled_from(["o-1", "o-2", "o-3"]), sku="tea"),)

        def resources(self) -> Sequence[object]:
            self.bank = Bank()
            return [self.bank, Carrier()]

        def documents(self) -> Mapping[str, Stock]:
            return {"tea": Stock(left=5)}

        def check(self) -> None:
            assert not self.bank.held

    TestShop = Shop.TestCase
    ```

    The steps of an example are: publish an event of `published`, let time pass, plan a fault for a later operation of a
    service, or disturb a worker at once. At the end the world runs until it is quiet. Then the invariants of the kit
    and `check` are checked.

    Add rules and invariants of your own as usual in Hypothesis, with `@rule` and `@invariant()`; they can use
    `self.world`. Do not use `@initialize`, because the world itself begins in such a rule, and Hypothesis runs them in
    any order.

    Guarantees:
    - An example depends only on its steps. If the printed steps of a failing example are run again, they fail in the
      same way.
    - The timeline is attached to the exception as a note.
    - The world is always ended.

    The settings are `SETTINGS` unless you replace them: `Shop.TestCase.settings = settings(SETTINGS,
    max_examples=500)`. `--hypothesis-show-statistics` shows which faults, outcomes and dead letters there were.
    """

    services: "ClassVar[Sequence[Service[DataclassInstance | None]]]" = ()
    """Services of the world. Two workers are started for each."""
    published: ClassVar[Sequence[st.SearchStrategy[Event]]] = ()
    """Strategies for the events that applications may publish, one for each kind of event."""
    faults: ClassVar[Faults] = faults.everything()
    """Faults that may happen, with their targets and time windows. Hypothesis decides when and how often they happen,
    so only a rate of 0 makes a difference: it switches a fault off. `Faults()` injects nothing.
    """
    guarded: ClassVar[bool] = False
    """True to detect accidental use of real time, randomness, threads and the network. This doubles the time of a
    run.
    """

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        cls.TestCase.settings = SETTINGS

    def __init__(self) -> None:
        super().__init__()
        self._began: SimulatedWorld | None = None
        self._ahead = GrowingPlan(self.faults)
        self._possible, self._accidents = possible_faults(self), possible_accidents(self)
        self._around = sys.exception()

    # ---------------------------------------------------------------- declared by a choreography

    def resources(self) -> Sequence[object]:
        """Return the fakes. It is called for each example; see `World.start`. You can also add invariants here, with
        `self.world.always`.
        """
        return ()

    def documents(self) -> "Mapping[str, DataclassInstance]":
        """Return the documents that exist from the beginning. It is called for each example; see `World.start`."""
        return NO_DOCUMENTS

    def check(self) -> None:
        """Make assertions of your own at the end. It is called when the world is quiet, after the invariants of the kit
        have been checked.
        """

    @property
    def world(self) -> SimulatedWorld:
        """The world of the current example. Raises `SagaError` if the example has not begun it yet."""
        if self._began is None:
            raise SagaError("there is no world before `begin`; what is to be done first, `resources` can do")
        return self._began

    # ---------------------------------------------------------------- steps

    @initialize(
        seed=st.integers(0, 2**32 - 1),
        event=st.runner().flatmap(lambda self: st.one_of(self.published) if self.published else st.none()),
        faults=st.runner().flatmap(
            lambda self: (
                st.lists(st.sampled_from(self._possible), max_size=FAULTS_MAX) if self._possible else st.just([])
            )
        ),
    )
    def begin(self, seed: int, event: Event | None = None, faults: Sequence[str] = ()) -> None:
        """Begin the world, publish an event and plan these faults.

        The seed decides everything that the steps do not: which task runs next, and how long operations take.
        """
        self._began = SimulatedWorld(seed, self._ahead, guarded=self.guarded)
        self._began.start(*self.services, use=self.resources(), documents=self.documents())
        if event is not None:
            self.publish(event)
        for fault in faults:
            self.plant(fault)

    def _pretty_print(self, value: object) -> str:
        """Format an argument for the printed example. Hypothesis calls this method.

        An event is printed with its sensitive fields, because without them the example could not be run again.
        """
        of_hypothesis: Any = super()
        return _format_code(value) if isinstance(value, Event) else str(of_hypothesis._pretty_print(value))

    @precondition(lambda self: bool(self.published))
    @rule(event=st.runner().flatmap(lambda self: st.one_of(self.published)))
    def publish(self, event: Event) -> None:
        """Publish an event as an application. It is sent during the next step in which time passes."""
        self.world.publish(event)

    @rule(seconds=SECONDS)
    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run_for(timedelta(seconds=seconds))

    @rule()
    def run_until_quiet(self) -> None:
        """Run the world until nothing is in progress."""
        self.world.run_until_quiet()

    @precondition(lambda self: bool(self._possible))
    @rule(fault=st.runner().flatmap(lambda self: st.sampled_from(self._possible)))
    def plant(self, fault: str) -> None:
        """Plan a fault for a later operation of a service.

        `"payment#3 crash after"` hits the third operation of `payment` from now on that a crash can hit. `before` and
        `after` say whether the crash happens before or after the operation takes effect.
        """
        where, _, manner = fault.partition(" ")
        service, _, operation = where.rpartition("#")
        self._ahead.plant(service, manner, int(operation))

    @precondition(lambda self: bool(self._accidents))
    @rule(accident=st.runner().flatmap(lambda self: st.sampled_from(self._accidents)))
    def disturb(self, accident: str) -> None:
        """Make an accident happen to a worker now: `"payment-1 freeze"`."""
        worker, _, what = accident.partition(" ")
        self.world.disturb(worker, next(each for each in ACCIDENTS if each == what))

    def teardown(self) -> None:
        """Run the world until it is quiet and check it, unless a step has failed. End the world in either case."""
        world, failing = self._began, sys.exception()
        if world is None:
            return
        with world:
            if failing is not None and failing is not self._around:
                self._explain(failing)
                return
            try:
                world.run_until_quiet()
                self._count(world)
                world.verify()
                self.check()
            except BaseException as why:
                self._explain(why)
                raise

    def _count(self, world: SimulatedWorld) -> None:
        """Count in how many examples each fault, outcome and dead letter occurred, for `--hypothesis-show-statistics`.

        The statistics reveal a test in which every message becomes a dead letter. It breaks no invariant, but tests
        nothing.
        """
        if not currently_in_test_context():
            return
        for kind in sorted({fault.planned.kind for fault in world.trace.faults}):
            counted(f"fault: {kind}")
        for outcome in sorted({of.__name__ for of in map(world.outcome, world.sagas()) if of is not None}):
            counted(f"outcome: {outcome}")
        moments = [line.moment for line in world.trace.lines if isinstance(line, TraceNote)]
        for letter in sorted({f"{m.service}: {m.reason}" for m in moments if isinstance(m, DeadLettered)}):
            counted(f"dead letter of {letter}")

    def _explain(self, failure: BaseException) -> None:
        """Add the timeline to the failure as a note."""
        if isinstance(failure, HypothesisException | StopTest):
            return  # Hypothesis gives up this example
        sagas = [failure.saga] if isinstance(failure, CheckFailed) and failure.saga else []
        about = f" of {sagas[0]}" if sagas else ""
        failure.add_note("\n".join([f"timeline{about}:", *timeline(self.world, sagas)]))


def possible_faults(machine: Choreography) -> Sequence[str]:
    """List the faults that the rules allow for each service, in the form `"payment#3 crash after"`.

    A fault whose target is a topic is possible in any service. Each fault is a single text, because a step with fewer
    draws shrinks better.
    """
    names = [service.declared.name for service in machine.services]
    owners = {(rule.kind, rule.target.partition(".")[0]) for rule in machine.faults.rules if rule.rate}
    topics = {kind for kind, owner in owners if owner not in names}  # includes the target `*`
    return [
        f"{name}#{operation} {manner}"
        for operation in range(1, OPERATION_MAX + 1)
        for manner, (kind, _) in MANNERS.items()
        for name in names
        if kind in topics or (kind, name) in owners
    ]


def possible_accidents(machine: Choreography) -> Sequence[str]:
    """List the accidents that may happen to a worker at any time, in the form `"payment-1 freeze"`."""
    rules = [rule for rule in machine.faults.rules if rule.rate and rule.window_s is None]
    return [
        f"{service.declared.name}-{number} {accident}"
        for accident in ACCIDENTS
        for service in machine.services
        for number in range(1, WORKERS + 1)
        if any(rule.kind == accident and rule.hits([service.declared.name]) for rule in rules)
    ]


@dataclass(slots=True)
class PendingFault:
    """A planned fault that has not happened yet."""

    service: str
    kind: FaultKind
    after: bool
    left: int
    """Number of operations until the fault happens, including the operation that it hits. Only operations that this
    fault can hit are counted.
    """


class GrowingPlan:
    """A fault plan to which faults can be added while the world runs. Each fault waits for a later operation of its
    service.
    """

    def __init__(self, rules: Faults) -> None:
        self._rules = tuple(rule for rule in rules.rules if rule.rate)
        self._waiting: list[PendingFault] = []

    def plant(self, service: str, manner: str, operation: int) -> None:
        """Add a fault for the `operation`-th operation of the service from now on that the fault can hit."""
        kind, after = MANNERS[manner]
        self._waiting.append(PendingFault(service, kind, after, operation))

    def fault_at(self, operation: Operation, now_s: float) -> PlannedFault | None:
        """Return the fault that hits this operation, if any.

        If two faults are due at once, the second one never happens. If it were delayed to the next operation, two
        faults would have the same effect as one fault planned further ahead, and Hypothesis would stop shrinking at
        such an example.
        """
        due: list[PendingFault] = []
        for waiting in self._waiting:
            if waiting.service == operation.service and self._can_meet(waiting.kind, operation, now_s):
                waiting.left -= 1
                if not waiting.left:
                    due.append(waiting)
        if not due:
            return None
        self._waiting = [waiting for waiting in self._waiting if waiting.left]
        return PlannedFault(operation.process, operation.number, due[0].kind, due[0].after)

    def _can_meet(self, kind: FaultKind, operation: Operation, now_s: float) -> bool:
        names = (operation.service, *operation.names)
        return operation.what in POSSIBLE[kind] and any(
            rule.kind == kind
            and rule.hits(names)
            and (rule.window_s is None or rule.window_s[0] <= now_s < rule.window_s[1])
            for rule in self._rules
        )


def _format_code(value: object) -> str:
    """Return Python code that creates the value, including fields that its `repr` leaves out."""
    match value:
        case Enum():
            return f"{type(value).__name__}.{value.name}"
        case tuple():
            return f"({''.join(f'{_format_code(part)}, ' for part in value)})"
        case dict():
            return f"{{{', '.join(f'{_format_code(name)}: {_format_code(part)}' for name, part in value.items())}}}"
        case _ if is_dataclass(value):
            parts = (f"{field.name}={_format_code(getattr(value, field.name))}" for field in fields(value))
            return f"{type(value).__name__}({', '.join(parts)})"
        case _:
            return repr(value)
