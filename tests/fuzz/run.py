"""One run: the records are put into a log, a service consumes them, and each of them is accounted for."""

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from saga import Saga, Service
from saga.contracts import codec
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.consumer.record_router import recognize
from saga.engine.lifecycle import ServiceOptions, serve
from saga.engine.prepared_service import PreparedService, prepare
from saga.errors import BadInput
from saga.messages import Partition, Record, texts_of
from saga.messaging import envelope
from saga.messaging.envelope import to_binary_mode
from saga.messaging.message_ids import could_be_own
from saga.ops.histories import read_history
from saga.ops.sources import ServiceStore
from saga.store.port import Store
from saga.store.sqlite.store import SqliteStore
from saga.telemetry.events import PassedOver, Stuck, TelemetryEvent
from saga.testing.invariants.progress_checks import find_unaccounted_handler
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentReserved
from tests.fuzz.logs import CLOCK, DEAD, FuzzedLog
from tests.fuzz.records import TOPIC, Written

BATCH = 250
STILL_S = 60.0
"""So long without any progress, and a partition stands."""
UNREADABLE_TO_PEOPLE = re.compile(r"Traceback|<class|<function| object at 0x|codec can't decode|Errno|NoneType")

payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved:
    return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)


@payment.handler
async def note(confirmed: OrderConfirmed, reserved: PaymentReserved, saga: Saga) -> None: ...


@payment.handler(repeats=OrderConfirmed)
async def count(confirmed: OrderConfirmed) -> None: ...


@payment.compensation(reserve)
async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...


@dataclass
class Figures:
    """Figures of one run."""

    inputs: int = 0
    stops: list[str] = field(default_factory=list)
    """Workers that ended, partitions that stand."""
    losses: list[str] = field(default_factory=list)
    """Records that are in no progress and no dead letter."""
    unclear: list[str] = field(default_factory=list)
    """Dead letters that do not fit, do not give back what was there, or whose reason is unclear."""
    ends: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def is_clean(self) -> bool:
        return not (self.stops or self.losses or self.unclear)

    def __str__(self) -> str:
        ends = ", ".join(f"{n} {end}" for end, n in self.ends.most_common())
        return (
            f"{self.inputs} inputs, {len(self.stops)} stops, {len(self.losses)} losses, {len(self.unclear)} unclear "
            f"letters; {ends}; {len(self.reasons)} kinds of reasons"
        )


async def run(ground: FuzzedLog, written: Sequence[Written], folder: Path, also: Sequence[str] = ()) -> Figures:
    """Put them into the log while the service runs; then account for each. `also`: topics that have to be taken
    whole besides."""
    figures, moments, stop = Figures(inputs=len(written)), list[TelemetryEvent](), asyncio.Event()
    async with SqliteStore(folder / "store.db", clock=CLOCK) as store:
        serving = asyncio.get_running_loop().create_task(
            serve(
                prepare(payment.declared),
                store=store,
                broker=ground.broker,
                options=ServiceOptions(clock=CLOCK, report=moments.append, limits=FlowLimits(), stop=stop),
            )
        )
        try:
            for first in range(0, len(written), BATCH):
                await ground.put(written[first : first + BATCH])
            records = [record async for record in ground.broker.scan(TOPIC)]
            others = [record for topic in also async for record in ground.broker.scan(topic)]
            await _at_rest(ground, [*records, *others], serving, figures)
        finally:
            stop.set()
            for why in await asyncio.gather(serving, return_exceptions=True):
                if why is not None:
                    figures.stops.append(f"the worker ended: {why!r}")
        figures.stops += [f"a lane cannot decide: {m.error}" for m in moments if isinstance(m, Stuck)]
        letters = [record async for record in ground.broker.scan(DEAD)]
        passed = {(m.topic, m.partition, m.offset) for m in moments if isinstance(m, PassedOver)}
        await _account(figures, prepare(payment.declared), store, [r for r in records if r[:3] not in passed], letters)
        figures.ends["passed over"] += sum(record[:3] in passed for record in records)
    return figures


async def _at_rest(
    ground: FuzzedLog, records: Sequence[Record], serving: "asyncio.Task[None]", figures: Figures
) -> None:
    """Return when everything is committed, or nothing has moved for long."""
    ends = Counter(Partition(record.topic, record.partition) for record in records)
    seen, since_s = dict[Partition, int](), CLOCK.monotonic_s()
    while not serving.done():
        at = dict(await ground.positions())
        if all(at.get(partition, 0) >= end for partition, end in ends.items()):
            return
        if at != seen:
            seen, since_s = at, CLOCK.monotonic_s()
        elif CLOCK.monotonic_s() - since_s > STILL_S:
            figures.stops += [f"{p} stands at {at.get(p, 0)} of {end}" for p, end in ends.items() if at.get(p, 0) < end]
            return
        await CLOCK.sleep(0.05)


async def _account(
    figures: Figures, service: PreparedService, store: Store, records: Sequence[Record], letters: Sequence[Record]
) -> None:
    by_place: dict[str, Record] = {}
    by_message: dict[str, Record] = {}
    for letter in letters:
        headers = texts_of(letter.headers)
        by_place |= {headers["dead_position"]: letter} if "dead_position" in headers else {}
        by_message |= {headers["dead_message"]: letter} if "dead_message" in headers else {}
        _check_dead_letter_headers(figures, headers)
    for record in records:
        where = f"{record.topic}/{record.partition}/{record.offset}"
        try:
            end = await _end_of(service, store, record, by_message)
        except BadInput:
            end = "dead: cannot be read" if where in by_place else None
            if where in by_place:
                _check_given_back(figures, record, by_place[where])
        if end is None:
            figures.losses.append(f"{where}: {str(record)[:2000]}")
        else:
            figures.ends[end] += 1


async def _end_of(
    service: PreparedService,
    store: Store,
    record: Record,
    letters: Mapping[str, Record],
) -> str | None:
    """Fate of a record; `None` if it is unknown. Raises `BadInput` if its saga cannot be determined."""
    assert record.value is not None, "it is passed over"
    if record.value[:2] != codec.MARKER:
        record = to_binary_mode(record)
    found = recognize(record, service.schemas.library)
    assert found.name, "it is passed over"
    if found.name not in service.consumed:
        return "of no type that is taken"
    if found.doubt:
        raise BadInput(found.doubt)
    contract = service.contracts[found.name]
    message = envelope.to_message(record, type_=found.name, schema=found.schema, contract=contract)
    if message.source == service.name:
        if not could_be_own(message.id, message.type):
            raise BadInput("its sender calls itself as the service does")
        return "the copy of an own event"
    history = await read_history(ServiceStore(service.name, store), message.saga)  # with what is put aside in pages
    if (
        history is not None
        and find_unaccounted_handler(history.progress, service.roles, message.type, message.id) is None
    ):
        outcomes = {entry.message: entry.outcome for entry in history.entries}
        return f"in the progress: {outcomes[message.id]}"
    if message.id in letters:
        return "dead: of no progress"
    return None


def _check_dead_letter_headers(figures: Figures, headers: Mapping[str, str]) -> None:
    reason = headers.get("dead_reason", "")
    figures.reasons[re.sub(r"'.*'|[0-9a-f]{2,}|\d+", "_", reason)[:60]] += 1
    wrong = [
        what
        for what, is_so in {
            "no reason": not reason,
            "unprintable": not all(t.isprintable() for n, t in headers.items() if n.startswith("dead_")),
            "too long": len(reason.encode()) > 2000,
            "for no people": UNREADABLE_TO_PEOPLE.search(reason) is not None,
            "no remedy": not headers.get("dead_remedy") and "dead_cut" not in headers,
        }.items()
        if is_so
    ]
    if wrong:
        figures.unclear.append(f"{wrong}: {reason[:300]}")


def _check_given_back(figures: Figures, record: Record, letter: Record) -> None:
    """Check that all that a sender wrote is there, or as much as fits, with the digest of all."""
    headers = texts_of(letter.headers)
    value, key = record.value or b"", record.key or b""
    if "dead_cut" in headers:
        digests = {"dead_value": value, "dead_key": key}
        right = all(
            headers[name] == f"{len(content)} bytes, sha256 {sha256(content).hexdigest()}"
            for name, content in digests.items()
        )
        right = right and value.startswith(letter.value or b"") and key.startswith(letter.key or b"")
    else:
        theirs = tuple((envelope.rename_foreign(name), text) for name, text in record.headers)
        right = (letter.value, letter.key or b"") == (record.value, key)
        right = right and letter.headers[: len(theirs)] == theirs
    if not right:
        figures.unclear.append(f"not given back: {str(record)[:500]} in {str(letter)[:500]}")
