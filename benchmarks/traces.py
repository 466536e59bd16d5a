"""Part t of the benchmarks: the cost of traces. Spans are created, encoded and then dropped."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from benchmarks.parts import Figure
from benchmarks.running import Driver, in_flight, running
from benchmarks.services import waiting_order
from saga.clients.events import to_record
from saga.messages import Outgoing
from saga.support.clock import SystemClock
from saga.telemetry.traces import export_spans
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderPlaced
from services.payment import payment as example_payment
from services.payment.bank import Bank
from services.shipping import shipping as example_shipping
from services.shipping.carrier import Carrier

SAGAS, IN_FLIGHT, ROUNDS = 500, 100, 3
UNSAMPLED = f"00-{'a' * 32}-{'b' * 16}-00"
clock = SystemClock()


class Encoding(SpanExporter):
    """Exporter that encodes spans, to include the CPU time for this, and sends nothing."""

    def __init__(self) -> None:
        self.spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


def traces() -> list[Figure]:
    """(t) Measure the example with all sagas traced, with none of them sampled, and without traces"""
    return asyncio.run(_traces())


async def _traces() -> list[Figure]:
    exporter = Encoding()
    off, unsampled, on = 0.0, 0.0, 0.0
    for _ in range(ROUNDS):  # in turn, because the speed of the machine changes
        off += await _example(None, None) / ROUNDS
        unsampled += await _example(exporter, UNSAMPLED) / ROUNDS
        assert not exporter.spans or on
        on += await _example(exporter, None) / ROUNDS
    return [
        Figure("t CPU of the example without traces", off, "ms/saga"),
        Figure("t CPU of it with traces, none sampled", unsampled, "ms/saga"),
        Figure("t CPU of it with all sagas traced", on, "ms/saga"),
        Figure("t ratio, none sampled", unsampled / off, "times"),
        Figure("t ratio, all traced", on / off, "times"),
        Figure("t spans of a saga", exporter.spans / ROUNDS / (SAGAS + IN_FLIGHT), "spans"),
    ]


async def _example(exporter: SpanExporter | None, header: str | None) -> float:
    """Return the CPU time of one saga in milliseconds, including the driver and the spans. `header`: trace context of
    the saga's first message."""
    services = [s.declared for s in (waiting_order, example_payment, inventory, example_shipping)]
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        listener = None if exporter is None else await stack.enter_async_context(export_spans("bench", clock, exporter))
        use: Mapping[str, Sequence[object]] = {"payment": [Bank()], "shipping": [Carrier()]}
        async with running(Path(folder), services, use, traces=listener) as run:
            await run.stores["inventory"].insert("stock", "item-0", msgspec.json.encode(Stock(left=1_000_000)))
            driver = Driver(run.broker, {"PaymentCaptured": 3, "InventoryHandedOut": 3, "ShipmentDispatched": 3})

            async def saga(number: int) -> float:
                return await driver.saga(_placed(number, header))

            async with driver.listening(["payments", "inventory", "shipments"]):
                await in_flight(IN_FLIGHT, IN_FLIGHT, lambda n: saga(n + 900_000))
                began = time.process_time()
                await in_flight(SAGAS, IN_FLIGHT, saga)
                took = time.process_time() - began
        assert not run.counted.troubles, run.counted.troubles[:3]
    return took / SAGAS * 1e3


def _placed(number: int, header: str | None) -> Outgoing:
    event = OrderPlaced(
        order_id=f"order-{number}",
        customer_id="customer-1",
        sku="item-0",
        quantity=1,
        total=Decimal("9.80"),
        card="4242424242424242",
        address="Kiel",
    )
    return to_record(event, clock.now_ms(), trace=header)
