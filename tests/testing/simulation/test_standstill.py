"""A record that cannot be read: its partition stalls, this is reported, and all continues when it is mended."""

from saga.messages import Partition
from saga.telemetry.events import GoesOn, StandsStill, TelemetryEvent
from saga.testing.simulation.network import TraceNote
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.order.events import OrderConfirmed
from tests.testing.simulation.orders import an_order, begun


def test_a_stalled_partition_is_reported_once_by_each_reader_and_its_end_too() -> None:
    with SimulatedWorld(3, None, guarded=False) as world:
        begun(world)
        for topic, logs in world.cluster.topics.items():
            if topic == "orders":
                world.cluster.broken = {Partition(topic, number): 0 for number in range(len(logs))}
        world.publish(an_order(0))
        world.run_until_quiet()
        assert world.outcome("order-0") is None
        (stood,) = world.cluster.log
        place = Partition(stood.topic, stood.partition)
        reported = [m for m in moments(world) if isinstance(m, StandsStill)]
        assert {(m.topic, m.partition, m.offset) for m in reported} == {(*place, 0)}
        assert len({m.service for m in reported}) == len(reported) > 0
        assert "is stalled at offset 0" in reported[0].error
        world._loop.run_inside(lambda: world.cluster.repair(place))
        world.run_until_quiet()
        assert world.outcome("order-0") is OrderConfirmed
        on = [m for m in moments(world) if isinstance(m, GoesOn)]
        assert sorted((m.service, m.topic, m.partition) for m in on) == sorted((m.service, *place) for m in reported)


def moments(world: SimulatedWorld) -> list[TelemetryEvent]:
    return [line.moment for line in world.trace.lines if isinstance(line, TraceNote) and line.moment is not None]
