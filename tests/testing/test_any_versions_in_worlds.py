"""Any chain of versions that the check of contracts allows: releases with older and newer ones handle each other's
messages in a simulated world, and nothing is lost, dead, or taken for what it does not mean."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from saga import Event, Service
from saga.contracts import codec
from saga.contracts.library import binding_of
from saga.messages import name_of
from saga.testing.fault_plans import Chance, RandomPlan, faults
from saga.testing.simulation.simulated_world import SimulatedWorld
from tests.contracts.anychange import chain
from tests.contracts.anyschema import Draw, values
from tests.contracts.folders import generated, schema, write
from tests.testing.faulty_worlds import EVERYTHING, seeds

EXAMPLES = 2 * len(seeds(1))
"""Chains in each mode."""
VERSIONS_MAX = 4
DEPLOYS = faults.of("deploy", rate=0.04)


class Step(NamedTuple):
    """Release that is deployed, with the version of the event that it knows."""

    service: str
    version: int


class Play:
    """Classes of all versions, what is emitted in each, and what was received."""

    def __init__(self, module: ModuleType, versions: int, draw: Draw, sagas: Sequence[str]) -> None:
        self.begun, self.ended = module.Begun, module.Ended
        self.classes: list[type[Event]] = [getattr(module, f"SaidV{number}") for number in range(1, versions + 1)]
        self.emitted = {(n, saga): self._any(draw, n, saga) for n in range(1, versions + 1) for saga in sagas}
        self.heard: list[tuple[int, Any]] = []

    def _any(self, draw: Draw, version: int, saga: str) -> Event:
        binding = binding_of(self.classes[version - 1])
        some: Any = draw(values(binding.version.record, dict(binding.classes)))
        made: Event = replace(some, order_id=saga)
        return made

    def release(self, step: Step) -> Service[Any]:
        """The service that emits the event in this version, or that hears it."""
        service, cls = Service(step.service), self.classes[step.version - 1]

        async def say(begun: Any) -> Any:
            return self.emitted[step.version, begun.order_id]

        async def hear(event: Any, begun: Any) -> Any:
            self.heard.append((step.version, event))
            return self.ended(order_id=event.order_id)

        say.__annotations__ = {"begun": self.begun, "return": cls}
        hear.__annotations__ = {"event": cls, "begun": self.begun, "return": self.ended}
        service.handler(say if step.service == "order" else hear)
        return service

    def check(self, sagas: Sequence[str]) -> None:
        """Each saga was received with what some version emitted: fields that did not change are what they were."""
        assert {event.order_id for _, event in self.heard} == set(sagas)
        for version, heard in self.heard:
            options = [self.emitted[n + 1, heard.order_id] for n in range(len(self.classes))]
            assert any(self._agree(event, heard) for event in options), f"{heard}, in version {version}, of {options}"

    @staticmethod
    def _agree(written: Any, heard: Any) -> bool:
        """True if fields of one name and one type are the same in both; as text, for NaN is not equal to itself."""
        of, to = (binding_of(type(each)).version.record for each in (written, heard))
        pairs = [(field, to.field(field.name)) for field in of.fields]
        same = [field.name for field, other in pairs if other is not None and other.type == field.type]
        then, now = codec.to_json(written), codec.to_json(heard)
        return all(str(then[name]) == str(now[name]) for name in same)


def steps(draw: Draw, mode: str, newest: int) -> list[Step]:
    """Releases, in an order that the mode allows; both began with version 1."""
    if mode == "backward_transitive":  # all who hear it first, then its owner, up and down
        return [Step("hearer", newest), *(Step("order", draw(st.integers(1, newest))) for _ in range(3))]
    if mode == "forward_transitive":  # its owner, and those who hear it stay
        return [Step("order", number) for number in range(2, newest + 1)]
    return [
        Step(draw(st.sampled_from(["order", "hearer"])), draw(st.integers(1, newest)))
        for _ in range(draw(st.integers(2, 4)))
    ]


@pytest.mark.parametrize("mode", ["full_transitive", "backward_transitive", "forward_transitive"])
@settings(
    max_examples=EXAMPLES,
    phases=[Phase.generate],  # a schedule that is shrunk for minutes tells no more than its seed
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_old_and_new_code_handle_each_others_messages_if_the_check_allows_it(data: st.DataObject, mode: str) -> None:
    draw = data.draw
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, schema("Begun", starts=True, produced_by="external"))
        write(folder, schema("Ended", topic="ends", owner="hearer", outcome="success"))
        versions = len(chain(draw, folder, mode, VERSIONS_MAX).contracts["Said"].versions)
        event(f"{versions} versions")
        module = generated(folder, "Begun", "Ended", *(f"Said.v{number}" for number in range(1, versions + 1)))
        deployed = steps(draw, mode, versions)
        sagas = [f"o-{number}" for number in range(2 * len(deployed) + 2)]
        play = Play(module, versions, draw, sagas)
        meanwhile = EVERYTHING | DEPLOYS if mode == "full_transitive" else EVERYTHING
        seed = draw(st.integers(0, 1000))
        with SimulatedWorld(seed, RandomPlan(meanwhile, Chance(seed)), guarded=False) as world:
            world.start(play.release(Step("order", 1)), play.release(Step("hearer", 1)))
            for number, step in enumerate([None, *deployed]):
                if step is not None:
                    world.deploy(play.release(step))
                world.publish(*(play.begun(order_id=saga) for saga in sagas[2 * number : 2 * number + 2]))
                world.run_for(timedelta(seconds=1))
            world.run_until_quiet()
            ends = [world.outcome(saga) for saga in sagas]
            assert [end and name_of(end) for end in ends] == ["Ended"] * len(sagas)
            assert not [record for record in world.cluster.log if record.topic.endswith(".dead")]
            world.verify()
            play.check(sagas)
