"""Each rule about commands is there for a loss: take the rule away, and the exploration finds it."""

from typing import Any

import pytest
from msgspec.structs import replace

from saga.commands import Command
from saga.progress import decide, operators, record
from saga.progress.actions import Discard, Seal
from saga.progress.document import Kept, Snapshot
from saga.progress.record import Hand, Written
from tests.exploration.without_a_rule import Take, check_loss

heed, replayed, discarded = operators.heed, operators._replayed, operators.discarded


def replays_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    def uncounted(p: Snapshot, hand: Hand, command: Command, kept: Kept) -> Written:
        append = record.append

        def same(p: Snapshot, *rest: Any) -> Written:
            return append(replace(p, replays=p.replays - 1), *rest)

        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(record, "append", same)
            return replayed(p, hand, command, kept)

    patch.setattr(operators, "_replayed", uncounted)


def a_command_is_heeded_each_time_it_comes(patch: pytest.MonkeyPatch) -> None:
    into = record.into_inbox
    patch.setattr(operators, "COMMAND", "another name each time")
    patch.setattr(record, "into_inbox", lambda p, hand, name, ids_: into(p, hand, f"{name}{p.n}", ids_))


def a_replay_forgets_what_has_begun(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        operators, "_replayed", lambda p, hand, command, kept: replayed(replace(p, intents=()), hand, command, kept)
    )


def what_has_begun_is_discarded_at_once(patch: pytest.MonkeyPatch) -> None:
    def at_once(p: Snapshot, roles: Any, command: Command) -> Any:
        action = heed(p, roles, command)
        if not isinstance(action, Seal):
            return action
        return Discard(command, next(k for k in p.queue if k.dead == command.dead))

    def forgotten(p: Snapshot, hand: Hand, command: Command, kept: Kept, **remains: Any) -> Written:
        return discarded(replace(p, intents=()), hand, command, kept)

    patch.setattr(operators, "heed", at_once)
    patch.setattr(operators, "discarded", forgotten)


def what_is_discarded_is_not_in_the_inbox(patch: pytest.MonkeyPatch) -> None:
    def absent(p: Snapshot, hand: Hand, command: Command, kept: Kept, **remains: Any) -> Written:
        into = record.into_inbox
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(record, "into_inbox", lambda p, hand, name, ids_: into(p, hand, name, ()))
            return discarded(p, hand, command, kept, **remains)

    patch.setattr(operators, "discarded", absent)


def who_decides_may_be_left_without(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operators, "_indispensable", lambda p, roles, role, kept: None)


def what_is_sealed_may_be_replayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operators, "_irreplayable", lambda p, kept: None)
    intent_with = decide.intent_with
    patch.setattr(
        decide,
        "intent_with",
        lambda p, handler, message, kind="do": None if kind == "lieu" else intent_with(p, handler, message, kind),
    )


RULES: dict[Take, str] = {
    replays_are_not_counted: "replay: it dies again, and is replayed again",
    a_command_is_heeded_each_time_it_comes: "discard: refused by who decides, then replayed",
    a_replay_forgets_what_has_begun: "replay: what was read stays, while another saga gives",
    what_has_begun_is_discarded_at_once: "discard: of what has changed a document",
    what_is_discarded_is_not_in_the_inbox: "discard: crash",
    who_decides_may_be_left_without: "discard: refused by who decides, then replayed",
    what_is_sealed_may_be_replayed: "discard and replay: two people disagree",
}


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_there_is_a_loss(take_away: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    check_loss(take_away, RULES[take_away], monkeypatch)
