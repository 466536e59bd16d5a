"""The result of a command or a control is waited for, also while the store of its service cannot be read."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from saga.errors import StoreUnavailable
from saga.messaging.controls import ControlEntry, ControlLog, Switch
from saga.ops import operator_commands
from saga.ops.operator_commands import NOT_ENDED, CommandAnswer, SentCommand, wait_for_answers, wait_for_entry
from saga.ops.selection import Deployment
from saga.ops.sources import ServiceStore
from saga.progress.document import FailedAttempt, Outcome, Transition
from saga.testing.trials import TrialClock
from tests.ops.test_bulk_commands import make_letter
from tests.ops.test_sources import a_store
from tests.progress.pieces import START, a_message, blank, kept

ENTRY = ControlEntry(id="wish", time="", who="ada", why="", switch=Switch(flag="blue", percent=1.0), previous="")
LOG = ControlLog(service="payment", entries=(msgspec.Raw(msgspec.json.encode(ENTRY)),))
SENT = SentCommand(make_letter("s-1"), "m")


@pytest.fixture
async def deployment(tmp_path: Path) -> Deployment:
    return Deployment(stores=[await a_store(tmp_path, "payment")], warn=print, clock=TrialClock())


class Store:
    """A store that cannot be read for some times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def fail(self) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise StoreUnavailable("it is recovering")

    async def find_control_log(self, service: str, sources: Sequence[ServiceStore]) -> ControlLog:
        self.fail()
        return LOG

    async def find_answer(self, sent: SentCommand, source: ServiceStore | None) -> CommandAnswer:
        self.fail()
        return CommandAnswer(sent, "replayed", "", "handled")


def use(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_commands, "find_control_log", store.find_control_log)
    monkeypatch.setattr(operator_commands, "_find_answer", store.find_answer)


async def test_a_store_that_is_unavailable_for_a_moment_is_asked_again(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Store(3), monkeypatch)
    assert await wait_for_entry("payment", "wish", deployment, 30.0) == ENTRY
    use(Store(3), monkeypatch)
    assert [answer.after async for answer in wait_for_answers([SENT], deployment, 30.0)] == ["handled"]


async def test_a_store_that_stays_unavailable_is_reported_at_the_end(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Store(1 << 30), monkeypatch)
    began_s = deployment.clock.monotonic_s()
    with pytest.raises(StoreUnavailable, match="it is recovering"):
        await wait_for_entry("payment", "wish", deployment, 30.0)
    assert deployment.clock.monotonic_s() - began_s >= 30.0
    with pytest.raises(StoreUnavailable, match="it is recovering"):
        [answer async for answer in wait_for_answers([SENT], deployment, 30.0)]
    assert deployment.clock.monotonic_s() - began_s >= 60.0


# -------------------------------------------------------------------- what came of a repeated run


def an_entry(outcome: Outcome, reason: str, *failures: FailedAttempt) -> Transition:
    return Transition(
        n=0,
        previous="",
        time=START,
        outcome=outcome,
        handler="make",
        message="A-1",
        type="A",
        source="",
        reason=reason,
        failures=failures,
    )


FAILED = an_entry("retrying", "boom", FailedAttempt(time=START, ms=1, reason="boom"))
PAUSED = an_entry("retrying", "make is paused by ada")


@pytest.mark.parametrize(
    ("own", "after", "reason"),
    [
        ([PAUSED], NOT_ENDED, "make is paused by ada"),
        ([FAILED], "retrying", "ada wants it"),
        ([FAILED, PAUSED], "retrying", "ada wants it"),
        ([PAUSED, FAILED], "retrying", "ada wants it"),
        ([PAUSED, an_entry("handled", "")], "handled", "ada wants it"),
    ],
)
def test_a_repeated_run_that_is_put_off_has_not_failed(own: list[Transition], after: str, reason: str) -> None:
    waits = structs.replace(kept("make", a_message("A")), due_ms=1, put_off=True)
    p = structs.replace(blank(), queue=(waits,))
    answer = operator_commands._find_replay_answer(SENT, an_entry("replayed", "ada wants it"), own, p)
    assert (answer.after, answer.reason) == (after, reason)
    assert answer.is_success("replay") is (after == "handled")
