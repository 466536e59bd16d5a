"""Part s of the benchmarks: the cost of encryption, for a single event of the example and for the whole example."""

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.parts import Figure
from benchmarks.running import Driver, in_flight, running
from benchmarks.services import waiting_order
from saga.clients.events import encryptor_of, to_record
from saga.contracts import codec
from saga.contracts.encryption import decrypt_fields, encrypt_fields
from saga.contracts.library import binding_of
from saga.encryption.key_folder import KeyFolder
from saga.messages import Outgoing
from saga.support.clock import SystemClock
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderPlaced
from services.payment import payment as example_payment
from services.payment.bank import Bank
from services.shipping import shipping as example_shipping
from services.shipping.carrier import Carrier

TIMES, SAGAS, IN_FLIGHT, CUSTOMERS = 20_000, 1000, 100, 97
clock = SystemClock()


def sealing() -> list[Figure]:
    """(s) Measure encrypted sensitive fields: one event encoded and decoded, and the example with a key per saga"""
    return asyncio.run(_sealing())


async def _sealing() -> list[Figure]:
    with TemporaryDirectory() as folder:
        keys = _keys(Path(folder))
        key, event = await keys.get_or_create_key("order-1"), _placed(1)
        binding = binding_of(OrderPlaced)
        version, library = binding.version, binding.library
        plain = codec.encode(event)
        closed = encrypt_fields(plain, version, "order-1", key)
        out = [
            Figure("s encode", _us(lambda: codec.encode(event)), "us"),
            Figure("s seal", _us(lambda: encrypt_fields(plain, version, "order-1", key)), "us"),
            Figure("s open", _us(lambda: decrypt_fields(closed, library, "order-1", lambda _: key)), "us"),
            Figure("s decode", _us(lambda: codec.decode(plain, OrderPlaced, library)), "us"),
        ]
    without, with_keys = await _example(sealed_too=False), await _example(sealed_too=True)
    out += [
        Figure("s CPU of the example without keys", without, "ms/saga"),
        Figure("s CPU of it with a new key for each saga", with_keys, "ms/saga"),
        Figure("s ratio", with_keys / without, "times"),
    ]
    return out


def _keys(folder: Path) -> KeyFolder:
    keys = KeyFolder(folder / "keys", clock)
    keys.create_wrapping_key("bench", "to measure")
    return keys


def _us(act: Callable[[], object]) -> float:
    took = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(TIMES // 5):
            act()
        took.append((time.perf_counter() - began) / (TIMES // 5) * 1e6)
    return statistics.median(took)


def _placed(number: int) -> OrderPlaced:
    return OrderPlaced(
        order_id=f"order-{number}",
        customer_id=f"customer-{number % CUSTOMERS}",
        sku=f"item-{number % 20}",
        quantity=2,
        total=Decimal("9.80"),
        card="4242424242424242",
        address="Kiel",
    )


async def _example(*, sealed_too: bool) -> float:
    """Return the CPU time of one saga in milliseconds, including driver and client."""
    services = [s.declared for s in (waiting_order, example_payment, inventory, example_shipping)]
    with TemporaryDirectory() as folder:
        keys = _keys(Path(folder)) if sealed_too else None
        use: Mapping[str, Sequence[object]] = {"payment": [Bank()], "shipping": [Carrier()]}
        async with running(Path(folder), services, use, keys=keys) as run:
            for n in range(20):
                await run.stores["inventory"].insert("stock", f"item-{n}", msgspec.json.encode(Stock(left=1_000_000)))

            async def first(number: int) -> Outgoing:
                event = _placed(number)
                return to_record(event, clock.now_ms(), encrypt=await encryptor_of(event, keys))

            driver = Driver(run.broker, {"PaymentCaptured": 3, "InventoryHandedOut": 3, "ShipmentDispatched": 3})

            async def saga(number: int) -> float:
                return await driver.saga(await first(number))

            async with driver.listening(["payments", "inventory", "shipments"]):
                await in_flight(IN_FLIGHT, IN_FLIGHT, lambda n: saga(n + 900_000))
                began = time.process_time()
                await in_flight(SAGAS, IN_FLIGHT, saga)
                took = time.process_time() - began
        assert not run.counted.troubles, run.counted.troubles[:3]
    return took / SAGAS * 1e3
