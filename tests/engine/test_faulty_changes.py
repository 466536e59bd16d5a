"""Changes that come late, twice, merged, with gaps and rewound, as a connector may bring them: what a service does with
them is the same. And each rule that makes it so is planted out and found."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random  # noqa: TID251 - drawn from a seed
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from saga.engine.consumer import record_router
from saga.engine.consumer.record_router import route_record
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.isolated_ports import RecordingPublisher
from saga.engine.prepared_service import prepare
from saga.engine.service_runtime import make_service_runtime
from saga.messages import Message, Position, Record
from saga.messaging.names import PROGRESS, change_topic
from saga.progress.document import SagaProgress, decode_progress, progress_key
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.testing.trials import TrialClock, retry_at_once, trial_ports
from tests.testing.parcels import GONE, watching, wrong_with

CAS = 1_767_225_600_000_000_000
APPENDED_MS = 1_767_225_601_000


def make_records(parcels: int, versions: int) -> list[Record]:
    """Records of parcels that are written so often each, and removed at last, as a connector without faults has
    them: parcel by parcel in order, all of them mixed."""
    records = []
    for version in range(1, versions + 2):
        for parcel in range(parcels):
            mutation: dict[str, object] = {
                "event": "deletion" if version > versions else "mutation",
                "key": f"p-{parcel}",
                "cas": CAS + version * parcels + parcel,
                "revSeqno": version,
            }
            if version <= versions:
                mutation["content"] = {"version": version}
            records.append(Record(change_topic("watching", "parcels"), 0, 0, b"", msgspec.json.encode(mutation), (), 0))
    return records


def key_of(record: Record) -> str:
    key: str = msgspec.json.decode(record.value or b"")["key"]
    return key


def twice(records: list[Record], chance: Random) -> list[Record]:
    return [each for record in records for each in [record] * chance.choice((1, 1, 2))]


def rewound(records: list[Record], chance: Random) -> list[Record]:
    """The connector dies, and resumes from a position that it had saved before."""
    at = chance.randrange(len(records))
    return [*records[: at + 1], *records[chance.randrange(at + 1) :]]


def merged(records: list[Record], chance: Random) -> list[Record]:
    """Of several writes of one document the last alone is published."""
    last = {key_of(record): n for n, record in enumerate(records)}
    return [r for n, r in enumerate(records) if last[key_of(r)] == n or chance.random() < 0.6]


def gap(records: list[Record], chance: Random) -> list[Record]:
    """A stretch of the stream is not published, but for what is the last of its document."""
    last = {key_of(record): n for n, record in enumerate(records)}
    begin_, end = sorted((chance.randrange(len(records)), chance.randrange(len(records))))
    return [r for n, r in enumerate(records) if not begin_ <= n < end or last[key_of(r)] == n]


def late(records: list[Record], chance: Random) -> list[Record]:
    """One document's changes come after those of all others: there is no order between documents."""
    name = key_of(chance.choice(records))
    return [r for r in records if key_of(r) != name] + [r for r in records if key_of(r) == name]


FAULTS: Sequence[Callable[[list[Record], Random], list[Record]]] = (merged, gap, late, rewound, twice)
"""Faults in the order in which they happen: what was merged away in Couchbase is in no position that is saved."""


async def shown(records: Sequence[Record]) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Versions that each parcel's saga was shown; and the outcomes that are neither handled nor ignored."""
    clock, service = TrialClock(), retry_at_once(prepare(watching.declared))
    found: dict[str, tuple[int, ...]] = {}
    odd: list[str] = []
    with TemporaryDirectory() as folder:
        async with SqliteStore(Path(folder) / "store.db", clock=SystemClock()) as store:
            ports = trial_ports("watching", store, clock, RecordingPublisher())
            participant = make_service_runtime(service, {}, ports)
            for offset, record in enumerate(records):
                placed = record._replace(offset=offset, time_ms=APPENDED_MS + offset)
                message = route_record(placed, service)
                assert isinstance(message, Message), message
                await MessageProcessor(participant).process(
                    MessageProcessor(participant).begin(message, Position(*placed[:3]), None)
                )
            async for key, document in store.scan(PROGRESS, progress_key("watching", "")):
                progress: SagaProgress = decode_progress(document.content)
                found[key.partition("::")[2]] = tuple(progress.state.get("versions", ()))
                odd += [t.outcome for t in map(_entry, progress.transitions) if t.outcome not in ("handled", "ignored")]
    return found, odd


def _entry(raw: object) -> "_Outcome":
    return msgspec.json.decode(bytes(raw), type=_Outcome)  # type: ignore[call-overload] # raw JSON


class _Outcome(msgspec.Struct):
    outcome: str


async def wrong_in(seed: int) -> str | None:
    """Story of what a stream with faults did that none may do; `None` if all is well."""
    chance = Random(seed)
    parcels, versions = chance.randint(1, 3), chance.randint(1, 4)
    records = make_records(parcels, versions)
    for fault in FAULTS:
        if chance.random() < 0.6:
            records = fault(records, chance)
    found, odd = await shown(records)
    if odd:
        return f"outcomes {odd}"
    if len(found) != parcels:
        return f"{len(found)} sagas of {parcels} documents"
    written_versions = (*range(1, versions + 1), GONE)
    stories = (wrong_with(seen, written_versions, merges=True) for seen in found.values())
    return next((story for story in stories if story is not None), None)


@settings(max_examples=25)
@given(st.integers(0, 2**32))
async def test_a_faulty_connector_delivers_each_version_once_in_order_and_always_the_last(seed: int) -> None:
    assert await wrong_in(seed) is None


# -------------------------------------------------------------------- planted


@contextmanager
def planted(monkeypatch: pytest.MonkeyPatch, change: Callable[[Message, Record], Message]) -> Iterator[None]:
    """A runtime that makes other messages of changes."""
    honest = record_router.parse_change

    def message_in(record: Record, event: type) -> Message | None:
        message = honest(record, event)
        return None if message is None else change(message, record)

    with monkeypatch.context() as patch:
        patch.setattr("saga.engine.consumer.record_router.parse_change", message_in)
        yield


async def found_among(seeds: int) -> str:
    stories = [story for seed in range(seeds) if (story := await wrong_in(seed)) is not None]
    assert stories, "nothing was found"
    return stories[0]


async def test_planted_an_id_of_the_place_in_the_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(monkeypatch, lambda m, r: replace(m, id=f"|{r.topic}/{r.partition}/{r.offset}")):
        assert "was shown a version twice" in await found_among(20)


async def test_planted_an_id_without_the_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(monkeypatch, lambda m, r: replace(m, id=m.id.partition("@")[0])):
        assert "was not shown its end" in await found_among(20)
