"""`saga doctor` and records of types that no contract has, among the newest of the topics that a service reads."""

import asyncio

import pytest

from saga.contracts.library import binding_of
from saga.messages import Outgoing, Record
from saga.ops import doctor
from saga.ops.doctor import TopicSample, describe_types, find_unknown_type
from services.payment.events import OrderPlaced
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery, the_broker
from tests.cli.test_doctor import found_by, wrong
from tests.engine.real_worker import an_order, message_of

OURS = binding_of(OrderPlaced).library
VALUE = message_of(an_order(), started=None).value


def record(type_: bytes | None, value: bytes | None = VALUE, offset: int = 0) -> Record:
    headers = () if type_ is None else (("ce_type", type_),)
    return Record("orders", 0, offset, b"order-1", value, headers, 0)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (record(b"OrderPlaced"), None),
        (record(None), None),
        (record(b"'OrderPlaced'"), None),
        (record(b"shop.placed"), ("shop.placed", "OrderPlaced")),
        (record(b"order.audited", b'{"by": "eve"}'), ("order.audited", "")),
        (record(None, b"rubbish"), None),
        (record(b"order.audited", None), None),
    ],
)
def test_a_type_is_unknown_where_neither_header_nor_bytes_say_a_contract_or_they_contradict(
    given: Record, found: tuple[str, str] | None
) -> None:
    assert find_unknown_type(given, [OURS]) == found
    assert find_unknown_type(given, [OURS, OURS]) == found


def test_the_types_of_most_records_are_listed_with_count_and_place() -> None:
    looked = TopicSample()
    for offset in range(20):
        looked.add(record(f"type-{offset % 7 if offset < 18 else 0}".encode(), b"{}", offset), [OURS])
    looked.add(record(b"shop.placed", offset=20), [OURS])
    descriptions = [each.what for each in describe_types("orders", looked)]
    assert len(descriptions) == doctor.TYPES_MAX
    assert descriptions[0] == (
        "5 records of the newest 21 are of the type 'type-0', which no contract has; orders/0 has one at offset 0"
    )
    [late] = [each.what for each in describe_types("orders", TopicSample(count=3), late=True)]
    assert late == "only 3 of its newest records could be read within 10 s"


def test_the_doctor_looks_at_the_newest_records_only(
    saga: Call, embedded_pottery: Pottery, monkeypatch: pytest.MonkeyPatch
) -> None:
    pottery, header = embedded_pottery, (("ce_type", b"cup.broken"),)

    async def published(count: int, *headers: tuple[str, bytes]) -> None:
        async with the_broker() as broker:
            await broker.publish([Outgoing(pottery.topic, b"cup-1", b"{}", headers)] * count)

    saga("topics", "apply", pottery.module)
    asyncio.run(published(3, *header))
    moved = saga("offsets", "reset", pottery.service, "--topic", pottery.topic, "--to", "latest",
                 "--who", "ada", "--why", "it is new")  # fmt: skip
    assert moved.exit_code == 0, moved.output
    [found] = wrong(found_by(saga, pottery.module, exit_code=0))
    assert found.startswith(
        f"warning {pottery.topic}: 3 records of the newest 3 are of the type 'cup.broken', which no contract has; "
    )
    monkeypatch.setattr(doctor, "NEWEST_MAX", 2)
    asyncio.run(published(2))
    assert not [each for each in wrong(found_by(saga, pottery.module, exit_code=0)) if "cup.broken" in each]
