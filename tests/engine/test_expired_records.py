"""Records that the log has lost before a service had them are reported once, and the service continues after them."""

from pathlib import Path

from saga import Saga, Service
from saga.broker.embedded.log import row_checksum
from saga.messages import Partition
from saga.telemetry.events import Expired, Handled
from services.payment.events import OrderPlaced
from tests.engine.real_worker import Workplace, an_order, at_work, workplace

ORDERS_MAX = 24


def a_service() -> Service[None]:
    payment = Service("payment")

    @payment.handler
    async def note(placed: OrderPlaced, saga: Saga) -> None:
        pass

    return payment


def removed(place: Workplace, below: dict[Partition, int]) -> None:
    execute = place.broker.connection.execute
    for (topic, number), offset in below.items():
        ((first,),) = execute("SELECT first_log FROM topics WHERE name = ?", (topic,)).fetchall()
        execute(f"DELETE FROM log_{first + number} WHERE offset < ?", (offset,))
        log = first + number
        execute("UPDATE logs SET oldest = ?, oldest_sum = ? WHERE id = ?", (offset, row_checksum(log, offset), log))


async def test_expired_records_are_reported_by_partition_and_once(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        service = a_service()
        async with at_work(place, service):
            await place.publish(an_order("first"))
            await place.at_rest(service)
        await place.publish(*(an_order(f"order-{n}") for n in range(ORDERS_MAX)))
        lost = [record for record in await place.records("orders") if record.offset >= 1][::3]
        ends = {Partition("orders", record.partition): record.offset + 1 for record in lost}
        begins = {partition: place.committed(service, partition) for partition in ends}
        gone = {p: end - begins[p] for p, end in ends.items() if end > begins[p]}
        assert len(gone) > 1
        removed(place, ends)
        place.moments.clear()
        async with at_work(place, service):
            await place.at_rest(service)
        reported = {Partition(m.topic, m.partition): (m.first, m.last, m.count) for m in place.reported(Expired)}
        assert reported == {p: (begins[p], ends[p] - 1, count) for p, count in gone.items()}
        assert len(place.reported(Expired)) == len(gone)
        assert len(place.reported(Handled)) == ORDERS_MAX - sum(gone.values())
        place.moments.clear()
        async with at_work(place, service):
            await place.publish(an_order("last"))
            await place.at_rest(service)
        assert place.reported(Expired) == []


async def test_a_position_moves_behind_what_expired_although_nothing_else_comes(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        service = a_service()
        async with at_work(place, service):
            await place.publish(an_order())
            await place.at_rest(service)
        await place.publish(an_order())
        ((partition, end),) = {(r.partition, r.offset + 1) for r in await place.records("orders") if r.offset == 1}
        removed(place, {Partition("orders", partition): end})
        async with at_work(place, service):
            await place.at_rest(service)
        assert place.committed(service, Partition("orders", partition)) == end
        assert [m.count for m in place.reported(Expired)] == [1]
