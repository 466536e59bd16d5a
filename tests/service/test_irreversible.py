"""`irreversible=True`: the declaration of what cannot be undone."""

import pytest

from saga import Service
from saga.choreography.manifest import make_manifest
from saga.errors import DeclarationError
from services.payment.events import OrderCancelled, OrderPlaced, PaymentReserved


def make_service() -> Service:
    service = Service("payment")

    @service.handler(irreversible=True)
    async def reserve(placed: OrderPlaced) -> PaymentReserved:
        raise NotImplementedError

    with pytest.raises(DeclarationError, match=r"payment\.reserve is declared irreversible: leave that out, or the"):

        @service.compensation(reserve)
        async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    return service


def test_an_irreversible_handler_has_no_compensation_and_its_manifest_marks_it() -> None:
    reaction = make_manifest(make_service().declared).reaction("reserve")
    assert reaction is not None
    assert reaction.irreversible
