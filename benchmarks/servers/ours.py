"""Run services on the servers, as `saga run` does."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

from benchmarks.servers.ground import Ground, Work
from benchmarks.services import echo, order, payment, reader, shipping, stock, waiting_order
from saga.configuration import adapters, wiring
from saga.declarations.values import Declared
from saga.engine.lifecycle import ServiceOptions
from saga.engine.prepared_service import topics_of
from saga.support.clock import SystemClock
from saga.telemetry.events import Assigned, Handled, TelemetryEvent
from services.inventory import inventory
from services.payment import payment as example_payment
from services.payment.bank import Bank
from services.shipping import shipping as example_shipping
from services.shipping.carrier import Carrier

CAST: dict[str, Sequence[Declared]] = {  # the example without its deadline, as in earlier versions
    "echo": [echo.declared],
    "reader": [reader.declared],
    "chain": [service.declared for service in (order, payment, stock, shipping)],
    "example": [service.declared for service in (waiting_order, example_payment, inventory, example_shipping)],
}
TROUBLES = ("DeadLettered", "Stuck", "Unavailable", "Escalated", "Lost", "Retrying")


async def serve(asked: Work, ground: Ground, cast: str, only: str | None = None) -> None:
    """Run the services of `cast`, or only the one named `only`, with external systems in memory."""
    clock, settings, troubles = SystemClock(), ground.settings, list[TelemetryEvent]()
    services = [declared for declared in CAST[cast] if only in (None, declared.name)]
    waiting = {declared.name for declared in services}

    def report(moment: TelemetryEvent) -> None:
        if isinstance(moment, Handled):
            asked.done(repeated=not moment.outcomes)
        elif isinstance(moment, Assigned):
            waiting.discard(moment.service)
            if not waiting:
                asked.begins()
                asked.ready()
        elif type(moment).__name__ in TROUBLES:
            troubles.append(moment)

    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(adapters.broker_at(settings, clock))
        stores = {
            declared.name: await stack.enter_async_context(adapters.store_at(settings, declared.name, clock))
            for declared in services
        }
        for declared in services:
            await broker.ensure_topics(topics_of(declared))  # `serve_all` creates no topics on Kafka
        await wiring.serve_all(
            services,
            broker,
            stores,
            ServiceOptions(clock=clock, report=report, limits=wiring.limits_of(settings), stop=asked.stop),
            use={"payment": [Bank()], "shipping": [Carrier()]} if cast == "example" else {},
        )
    assert not troubles, troubles[:3]
