"""One saga is one trace across services on Kafka: its records carry the header, a collector gets the spans."""

import asyncio
import os
from importlib import import_module
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider

from saga import Client
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.messages import texts_of
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery, the_broker
from tests.telemetry.collector import Collector, collecting

WITHIN_S = 60.0
SELLER = """
from {module} import CupMade
from saga import Service

seller = Service("seller-of-{service}")


@seller.handler
async def show(made: CupMade) -> None:
    return None
"""


@pytest.mark.timeout(180)
def test_one_saga_is_one_trace_from_the_application_through_the_services_that_follow(
    kafka_pottery: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    module = f"seller_of_{kafka_pottery.module}"
    Path(f"{module}.py").write_text(SELLER.format(module=kafka_pottery.module, service=kafka_pottery.service))
    applied = saga("topics", "apply", kafka_pottery.module, module)
    assert applied.exit_code == 0, applied.output
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        monkeypatch.setenv("SAGA_TRACES", "on")
        asyncio.run(_ordered_made_and_shown(kafka_pottery, module, collector))


async def _ordered_made_and_shown(pottery: Pottery, module: str, collector: Collector) -> None:
    services, stop = wiring.load_services([pottery.module, module]), asyncio.Event()
    cups = import_module(pottery.module)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("a shop")
    async with Client() as client:
        with tracer.start_as_current_span("POST /cups") as root:
            await client.publish(cups.CupOrdered(cup_id="cup-1"))
    async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(wiring.run(services, Settings.from_environment(), lambda _: None, stop, CLOCK))
        awaited = {"process CupOrdered", "publish CupMade", "process CupMade"}
        while not awaited <= {span.name for _, span in collector.spans}:
            await CLOCK.sleep(0.05)
        stop.set()
    context = root.get_span_context()
    trace, shop = f"{context.trace_id:032x}", f"{context.span_id:016x}"
    assert {span.trace_id.hex() for _, span in collector.spans} == {trace}
    spans = {(service, span.name): span for service, span in collector.spans}
    ordered = spans[pottery.service, "process CupOrdered"]
    published = spans[pottery.service, "publish CupMade"]
    shown = spans[f"seller-of-{pottery.service}", "process CupMade"]
    assert [span.parent_span_id.hex() for span in (ordered, published, shown)] == [
        shop,
        ordered.span_id.hex(),
        published.span_id.hex(),
    ]
    async with the_broker() as broker:
        headers = [texts_of(record.headers) async for record in broker.scan(pottery.made)]
    assert [each["traceparent"].split("-")[:3] for each in headers] == [["00", trace, published.span_id.hex()]]
