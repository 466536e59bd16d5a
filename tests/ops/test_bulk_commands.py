"""One command about many dead letters: how fast it is sent, what is left out, and when it ends early."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from saga.errors import BadInput, BrokerUnavailable
from saga.ops import bulk_commands
from saga.ops.attention import BlockingDeadLetter
from saga.ops.bulk_commands import (
    BATCH_MAX,
    HALT_AFTER,
    PROBLEMS_MAX,
    BulkCommand,
    BulkRequest,
    LetterKey,
    parse_rate,
    plan_pace,
)
from saga.ops.dead_letters import DeadLetter
from saga.ops.operator_commands import REPLAYS_MAX, CommandAnswer, CommandRequest, SentCommand
from saga.ops.selection import Deployment, Operator, Selection
from saga.testing.trials import TrialClock


@dataclass
class Shop:
    """Services that carry out what is asked of them, and what they were asked."""

    clock: TrialClock = field(default_factory=TrialClock)
    gone: set[str] = field(default_factory=set)
    """Sagas that are no longer blocked."""
    replays: dict[str, int] = field(default_factory=dict)
    after: str = "handled"
    outcome: str = "replayed"
    selections: list[Selection] = field(default_factory=list)
    batches: list[tuple[float, list[str]]] = field(default_factory=list)
    bulk: BulkCommand | None = None
    stops_after: int = 1 << 30

    async def find_blocking(self, selection: Selection, _: Deployment) -> AsyncIterator[BlockingDeadLetter]:
        self.selections.append(selection)
        for saga in selection.sagas:
            if saga not in self.gone:
                yield BlockingDeadLetter(make_letter(saga), self.replays.get(saga, 0))
                yield BlockingDeadLetter(make_letter(saga, "another"), 0)

    async def send_commands(
        self, letters: Sequence[DeadLetter], wish: CommandRequest, _: Deployment
    ) -> list[SentCommand]:
        assert (wish.operator.who, wish.operator.why) == ("ada", "fixed")
        self.batches.append((self.clock.monotonic_s(), [each.saga or "" for each in letters]))
        if self.bulk is not None and len(self.batches) >= self.stops_after:
            self.bulk.stop("ada stopped it")
        return [SentCommand(letter, letter.id) for letter in letters]

    async def wait_for_answers(
        self, sent: Sequence[SentCommand], _: Deployment, wait_s: float
    ) -> AsyncIterator[CommandAnswer]:
        for each in sent:
            yield CommandAnswer(each, self.outcome, "why not", self.after)


def make_letter(saga: str, id_: str = "") -> DeadLetter:
    return DeadLetter(
        service="payment", id=id_ or f"dead-{saga}", what="dead letter", time="", reason="", remedy="", saga=saga
    )


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    made = Shop()
    for name in ("find_blocking", "send_commands", "wait_for_answers"):
        monkeypatch.setattr(bulk_commands, name, getattr(made, name))
    return made


def make_bulk(
    shop: Shop,
    count: int,
    rate_per_s: float = 5.0,
    *,
    again: bool = False,
    report: Callable[[CommandAnswer], None] = lambda _: None,
) -> BulkCommand:
    keys = [LetterKey("payment", f"dead-s-{n}", f"s-{n}") for n in range(count)]
    command = CommandRequest(wanted="replay", operator=Operator("ada", "fixed", 1.0))
    request = BulkRequest(command=command, rate_per_s=rate_per_s, again=again)
    shop.bulk = BulkCommand(keys, request, Deployment(warn=print, clock=shop.clock), report)
    return shop.bulk


async def test_commands_are_sent_at_the_rate_each_checked_just_before(shop: Shop) -> None:
    bulk = make_bulk(shop, 12)
    await bulk.run()
    assert [(round(at - shop.batches[0][0], 1), len(sagas)) for at, sagas in shop.batches] == [(0, 5), (1, 5), (2, 2)]
    assert [selection.services for selection in shop.selections] == [("payment",)] * 3
    assert [len(selection.sagas) for selection in shop.selections] == [5, 5, 2]
    progress = bulk.progress
    assert (progress.state, progress.done, progress.sent, progress.settled_count) == ("finished", 12, 12, 12)
    assert progress.ended_ms is not None
    assert progress.reason == ""


@pytest.mark.parametrize("rate_per_s", [0.1, 0.5, 1, 1.9, 7, 99.5, 150, 200])
def test_batches_keep_the_rate_and_are_bounded(rate_per_s: float) -> None:
    pace = plan_pace(rate_per_s)
    assert 1 <= pace.size <= BATCH_MAX
    assert pace.size / pace.seconds == pytest.approx(rate_per_s)


async def test_letters_that_no_longer_block_or_were_replayed_too_often_are_left_out(shop: Shop) -> None:
    shop.gone, shop.replays = {"s-1", "s-3"}, {"s-2": REPLAYS_MAX}
    bulk = make_bulk(shop, 5)
    await bulk.run()
    assert shop.batches[0][1] == ["s-0", "s-4"]
    assert (bulk.progress.left_out, bulk.progress.done) == (3, 2)
    assert bulk.progress.problems == [
        f"payment, s-2: was replayed {REPLAYS_MAX} times already: fix the cause, then include such sagas"
    ]
    again = make_bulk(shop, 5, again=True)
    await again.run()
    assert again.progress.left_out == 2


async def test_a_stopped_bulk_command_reports_what_remains(shop: Shop) -> None:
    shop.stops_after = 2
    bulk = make_bulk(shop, 1000, rate_per_s=10)
    await bulk.run()
    assert len(shop.batches) == 2
    assert (bulk.progress.state, bulk.progress.reason) == ("stopped", "ada stopped it")
    assert (bulk.progress.settled_count, bulk.progress.total) == (20, 1000)


class StoppingClock(TrialClock):
    """Clock of a bulk action that is stopped while it sleeps for the third time."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeps = 0
        self.bulk: BulkCommand | None = None

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        if self.sleeps == 3 and self.bulk is not None:
            self.bulk.stop("enough")
        await super().sleep(seconds)


async def test_a_stop_ends_the_pause_before_the_next_batch(shop: Shop) -> None:
    shop.clock = clock = StoppingClock()
    clock.bulk = bulk = make_bulk(shop, 3, rate_per_s=0.01)
    await bulk.run()
    assert (clock.sleeps, len(shop.batches)) == (3, 1), "it does not sleep for the 100 seconds of a batch"
    assert (bulk.progress.state, bulk.progress.reason) == ("stopped", "enough")


@pytest.mark.parametrize(
    ("outcome", "after", "field_"),
    [
        ("replayed", "dead", "failed"),
        ("replayed", "retrying", "failed"),
        ("ignored", "", "failed"),
        ("", "", "unanswered"),
    ],
)
async def test_it_stops_by_itself_when_too_many_in_a_row_have_no_success(
    shop: Shop, outcome: str, after: str, field_: str
) -> None:
    shop.outcome, shop.after = outcome, after
    bulk = make_bulk(shop, 500, rate_per_s=HALT_AFTER // 2)
    await bulk.run()
    assert len(shop.batches) == 2
    assert getattr(bulk.progress, field_) == HALT_AFTER
    assert bulk.progress.state == "stopped"
    assert "fix the cause first" in bulk.progress.reason
    assert "s-0: " in bulk.progress.problems[0]


async def test_what_is_remembered_of_failures_is_bounded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_commands, "HALT_AFTER", 1 << 30)
    shop.after = "dead"
    bulk = make_bulk(shop, 300, rate_per_s=100)
    await bulk.run()
    assert bulk.progress.failed == 300
    assert len(bulk.progress.problems) == PROBLEMS_MAX


async def test_an_unavailable_broker_ends_it_with_the_reason(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> list[SentCommand]:
        raise BrokerUnavailable("no broker at localhost")

    monkeypatch.setattr(bulk_commands, "send_commands", fail)
    bulk = make_bulk(shop, 10)
    await bulk.run()
    assert (bulk.progress.state, bulk.progress.reason) == ("failed", "no broker at localhost")
    assert bulk.progress.is_over


async def test_each_answer_is_reported_and_the_end_says_how_many_there_are(shop: Shop) -> None:
    shop.gone = {"s-1"}
    answers = list[str]()
    bulk = make_bulk(shop, 3, report=lambda answer: answers.append(answer.sent.dead_letter.saga or ""))
    assert bulk.progress.describe() == "0 of 3: nothing was sent; nothing more is sent"
    await bulk.run()
    assert answers == ["s-0", "s-2"]
    assert bulk.progress.describe() == "3 of 3: 2 done, 1 left out"
    shop.after = "dead"
    failing = make_bulk(shop, 500)
    await failing.run()
    assert failing.progress.describe() == (
        "15 of 500: 14 refused or failed again, 1 left out; nothing more is sent, because the last 10 had no success: "
        "fix the cause first"
    )


async def test_a_bulk_command_that_is_interrupted_says_so(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupt(*_: object) -> list[SentCommand]:
        raise asyncio.CancelledError

    monkeypatch.setattr(bulk_commands, "send_commands", interrupt)
    bulk = make_bulk(shop, 10)
    with pytest.raises(asyncio.CancelledError):
        await bulk.run()
    assert bulk.progress.describe() == "0 of 10: nothing was sent; nothing more is sent, because it was interrupted"


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "201", "five", ""])
def test_a_rate_is_a_number_within_limits(text: str) -> None:
    with pytest.raises(BadInput, match=r"the rate must be a number from 0\.01 to 200 a second"):
        parse_rate(text)
    assert (parse_rate("0.01"), parse_rate("200")) == (0.01, 200)
