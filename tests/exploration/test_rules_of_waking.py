"""Each rule about what waits for time is there for a loss: take the rule away, and the exploration finds it."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from saga import wakes
from saga.messages import Message
from saga.progress import history, record, step, timing
from saga.progress.actions import Done, Rename, SendOn
from saga.progress.document import Kept, Snapshot, Timer
from saga.runtime import persistence
from verification.explore import explore
from verification.scenarios import scenarios

Take = Callable[[pytest.MonkeyPatch], None]
SCENARIOS = {scenario.name: scenario for scenario in scenarios()}
woken, at_rest, unpublished = timing.woken, step._at_rest, history.unpublished


def what_waits_newly_relies_on_the_wake_that_there_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timing, "woken", lambda p, before, in_hand, now_ms: woken(p, p, in_hand, now_ms))


def a_wake_in_hand_is_one_to_come(patch: pytest.MonkeyPatch) -> None:
    nobody = Message(id="", type="", schema="", saga="", source="", time="", value=b"")
    patch.setattr(timing, "woken", lambda p, before, in_hand, now_ms: woken(p, p, nobody, now_ms))


def wakes_that_come_early_are_dropped(patch: pytest.MonkeyPatch) -> None:
    def dropped(*asked: Any) -> Any:
        action = at_rest(*asked)
        return Done() if isinstance(action, SendOn) else action

    patch.setattr(step, "_at_rest", dropped)


def a_clock_that_is_ahead_names_the_wake(patch: pytest.MonkeyPatch) -> None:
    def believed(*asked: Any) -> Any:
        action = at_rest(*asked)
        return Done() if isinstance(action, Rename) else action

    patch.setattr(step, "_at_rest", believed)


def each_write_names_a_wake(patch: pytest.MonkeyPatch) -> None:
    def named(p: Snapshot, before: Snapshot | None, in_hand: Message, now_ms: int) -> tuple[Snapshot, Timer | None]:
        return woken(replace(p, wake=None), before, in_hand, now_ms)

    patch.setattr(timing, "woken", named)
    patch.setattr(step, "_at_rest", lambda p, *asked: Done() if timing.next_due(p, asked[1]) is None else Rename())


def readers_publish_every_wake(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(history, "is_current", lambda p, entry: entry.wake is not None)


def readers_publish_the_wake_in_hand(patch: pytest.MonkeyPatch) -> None:
    publish = persistence.publish

    async def all_of_it(service: Any, turn: Any, p: Any, entry: Any) -> None:
        await publish(service, replace(turn, message=replace(turn.message, id="")), p, entry)

    patch.setattr(history, "unpublished", lambda p, is_committed, in_hand: unpublished(p, is_committed, ""))
    patch.setattr(persistence, "publish", all_of_it)


def readers_publish_no_wake(patch: pytest.MonkeyPatch) -> None:
    def without(p: Snapshot, *asked: Any) -> Any:
        return unpublished(replace(p, wake=None), *asked)

    patch.setattr(history, "unpublished", without)


def what_is_parked_goes_behind_the_others(patch: pytest.MonkeyPatch) -> None:
    def behind(p: Snapshot, kept: Kept) -> Snapshot:
        gone = [kept.message.id]
        rest = record.without(p.queue, kept.handler, gone)
        return replace(p, queue=(*rest, kept), waiting=record.without(p.waiting, kept.handler, gone))

    patch.setattr(record, "_at_the_head", behind)


def wakes_are_answered_from_the_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step.wakes, "TYPE", "another")


def wakes_record_where_they_lay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(persistence, "OURS", ("",))


TAKEN: dict[Take, str] = {}
