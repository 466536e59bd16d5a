"""Orders that only a person can complete: the bank's answer is lost, and the record of the call is damaged."""

from collections.abc import AsyncIterator, Callable
from decimal import Decimal

from saga import Retry, Saga, Service
from saga.errors import BadInput, Permanent
from saga.progress.document import decode_transition
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced
from services.payment import capture, reserve
from services.payment.bank import Bank, Declined
from services.payment.events import PaymentReleased, PaymentReserved
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.services.waiting_order import order

ADDRESSES = ("Kiel", "Atlantis", "Kiel")
"""Places, of which one has no delivery."""
ROUNDS_MAX = 12

deaf = Service("payment")
"""The example's service, with a bank whose answers are lost."""


class DeafBank(Bank):
    """Bank that reserves, and whose answer is lost; what is to be released it takes when it is mended."""

    def __init__(self) -> None:
        super().__init__()
        self.mended = False

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        await super().reserve(key, card, amount)
        raise Permanent("the line is dead")


@deaf.resource(timeout_s=5, expected_errors=(Declined,))
async def bank() -> AsyncIterator[Bank]:
    yield Bank()


deaf.handler(retry=Retry(attempts_max=3))(reserve)
deaf.handler(capture)


@deaf.compensation(reserve)
async def release(cancelled: OrderCancelled, reserved: PaymentReserved, bank: Bank, saga: Saga) -> PaymentReleased:
    if isinstance(bank, DeafBank) and not bank.mended:
        raise BadInput("the charge cannot be read")
    await saga.step(bank.release, saga.idempotency_key("release"), reserved.charge_id)
    return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)


def _placed(saga: str, address: str) -> OrderPlaced:
    return OrderPlaced(
        order_id=saga, customer_id="c-1", sku="tea", quantity=2, total=Decimal("9.80"), card=saga, address=address
    )


def _charge_of(bank: Bank, saga: str) -> str:
    (charge,) = [
        key for key, call in bank.calls.items() if (call.operation, call.arguments[:1]) == ("reserve", (saga,))
    ]
    return charge


def cured_orders(world: SimulatedWorld) -> Callable[[], None]:
    """A person says which charges the bank has, wants a compensation discarded, which is refused, then has it mended
    and tried again: in the end no money is set aside."""
    bank, carrier = DeafBank(), Carrier()
    world.start(order, deaf, inventory, shipping, use=[bank, carrier], documents={"tea": Stock(left=100)})
    sagas = [f"order-{number}" for number in range(len(ADDRESSES))]
    for saga, address in zip(sagas, ADDRESSES, strict=True):
        world.publish(_placed(saga, address))
    for round_ in range(ROUNDS_MAX):
        world.run_until_quiet()
        bank.mended = round_ > 1
        for saga in sagas:
            p = world.progress("payment", saga)
            if p is not None and any(k.dead for k in p.queue):
                world.resolve(deaf, saga, step="reserve", answered=_charge_of(bank, saga))
            elif p is not None and any(k.dead for k in p.compensating):
                world.replay(deaf, saga) if bank.mended else world.discard(deaf, saga)
    world.run_until_quiet()

    def judge() -> None:
        ends = [world.outcome(saga) for saga in sagas]
        assert set(ends) <= {OrderConfirmed, OrderCancelled}, ends
        assert not bank.held, f"money is set aside for ever: {bank.held}"
        assert len(bank.taken) == ends.count(OrderConfirmed), f"{ends}, {bank.taken}"

    return judge


def late_cure(world: SimulatedWorld) -> Callable[[], None]:
    """A person says what charge the bank has when the memory of the service has passed twice: all is still there."""
    bank = DeafBank()
    world.start(deaf, use=[bank])
    world.publish(_placed("order-0", "Kiel"))
    world.run_until_quiet()
    world.run_for(2 * deaf.declared.retention)
    for _ in range(ROUNDS_MAX):
        p = world.progress("payment", "order-0")
        if p is not None and any(k.dead for k in p.queue):
            world.resolve(deaf, "order-0", step="reserve", answered=_charge_of(bank, "order-0"))
        world.run_until_quiet()

    def judge() -> None:
        p = world.progress("payment", "order-0")
        assert p is not None, f"nothing is known of {bank.held}"
        assert [decode_transition(raw).outcome for raw in p.transitions].count("handled") == 1

    return judge
