"""What becomes of a command about a dead letter, and its record."""

from typing import Any

import pytest
from msgspec.structs import replace

from saga.commands import Command, Wanted
from saga.progress import decide, history, ids, operators, record
from saga.progress.actions import CloseSealed, Discard, Disregard, Replay, Run, Seal
from saga.progress.document import DeadLetter, Kept, Snapshot, decode_entry
from saga.progress.record import Written
from saga.progress.roles import COMMAND, Role, Roles, Undo
from tests.progress.pieces import NOW_MS, START, a_hand, a_message, a_role, an_intent, blank, kept, roles_of

DEAD = "dead-1"
A, B = a_message("A"), a_message("B")
HANDLER = a_role("on_a", "A")
ROLES = roles_of(HANDLER, a_role("on_b", "B"))


def a_command(wanted: Wanted = "replay", dead: str = DEAD, who: str = "ada") -> Command:
    return Command(
        id=f"operator|{wanted}-{who}",
        type=f"saga.{wanted}",
        schema="",
        saga="s",
        source="operator",
        time=START,
        value=b"",
        wanted=wanted,
        dead=dead,
        who=who,
        why="because",
    )


def quarantined(*behind: Kept, **fields: Any) -> Snapshot:
    return replace(blank(), n=3, queue=(kept("on_a", A, n=2, dead=DEAD), *behind), **fields)


def heeded(p: Snapshot, command: Command, roles: Roles = ROLES) -> Written:
    action = operators.heed(p, roles, command)
    assert isinstance(action, Replay | Discard | Disregard)
    return operators.heeded(p, a_hand(command, roles=roles), action)


def reason(p: Snapshot, command: Command, roles: Roles = ROLES) -> str:
    action = operators.heed(p, roles, command)
    assert isinstance(action, Disregard), action
    return action.reason


def test_what_is_replayed_is_the_first_to_run() -> None:
    p = quarantined(kept("on_b", B, n=1))
    assert decide.next_ready(p, ROLES, NOW_MS) is None
    written = heeded(p, a_command())
    assert decide.next_ready(written.snapshot, ROLES, NOW_MS) == Run(HANDLER, A, (A,))
    assert written.snapshot.replays == 1
    entry = written.entry
    assert entry is not None
    assert (entry.outcome, entry.handler, entry.message, entry.cause) == ("replayed", "on_a", a_command().id, A.id)
    assert entry.reason == "ada wants it: because"
    (end,) = entry.letters
    assert (end.id, end.what, end.handler) == ("dead-1-replayed", "replayed", "on_a")


def test_what_dies_again_after_a_replay_is_another_dead_letter() -> None:
    p = quarantined()
    again = heeded(p, a_command()).snapshot
    assert ids.dead_id("svc", "s", "on_a", A.id, p.replays) != ids.dead_id("svc", "s", "on_a", A.id, again.replays)


def test_a_command_is_heeded_once() -> None:
    written = heeded(quarantined(), a_command())
    assert operators.heed(written.snapshot, ROLES, a_command()) is None
    assert ids.entry(a_command().id, COMMAND) in written.snapshot.inbox


def test_of_a_saga_that_nobody_knows_nothing_is_written() -> None:
    assert operators.heed(blank(), ROLES, a_command()) is None


def test_a_dead_letter_that_is_not_there_any_more_is_told_in_the_history() -> None:
    written = heeded(quarantined(), a_command(dead="dead-2"))
    entry = written.entry
    assert entry is not None
    assert (entry.outcome, entry.letters) == ("ignored", ())
    assert entry.reason == (
        "not replayed: no dead letter dead-2 is in the saga's way here: it may have gone before (ada wants it: because)"
    )
    assert written.snapshot.queue == quarantined().queue


def test_what_had_begun_goes_on_when_it_is_replayed() -> None:
    intent = an_intent("on_a", A)
    written = heeded(quarantined(intents=(intent,)), a_command())
    assert decide.next_ready(written.snapshot, ROLES, NOW_MS) == Run(HANDLER, A, (A,), intent)


def test_a_message_whose_bytes_the_progress_lacks_cannot_be_replayed() -> None:
    p = replace(blank(), n=3, queue=(kept("on_a", replace(A, value=b""), dead=DEAD),))
    assert "its bytes are in the dead letter alone" in reason(p, a_command())


def test_what_is_sealed_cannot_be_replayed() -> None:
    p = quarantined(intents=(replace(an_intent("on_a", A), kind="lieu"),))
    assert "on_a is being closed" in reason(p, a_command())


def test_a_compensation_is_replayed_under_its_own_name_and_never_discarded() -> None:
    role = replace_role(HANDLER, undo=Undo(name="undo_a", outcomes=frozenset({"X"}), results=frozenset({"R"})))
    roles = roles_of(role)
    p = replace(blank(), n=3, compensating=(kept("on_a", a_message("X"), dead=DEAD),))
    assert "what on_a did would stand for ever" in reason(p, a_command("discard"), roles)
    written = heeded(p, a_command(), roles)
    assert written.entry is not None
    assert written.entry.handler == written.entry.letters[0].handler == "undo_a"
    assert written.snapshot.compensating[0].dead is None


def replace_role(role: Role, **fields: Any) -> Role:
    given = {name: getattr(role, name) for name in Role.__slots__}
    return Role(**{**given, **fields})


def test_what_is_discarded_is_never_handled_and_what_is_behind_it_goes_on() -> None:
    written = heeded(quarantined(kept("on_b", B, n=3)), a_command("discard"))
    p, entry = written.snapshot, written.entry
    assert entry is not None
    assert (entry.outcome, entry.handler, entry.cause) == ("discarded", "on_a", A.id)
    assert [letter.what for letter in entry.letters] == ["discarded"]
    assert ids.entry(A.id, "on_a") in p.inbox
    assert ids.entry(a_command("discard").id, COMMAND) in p.inbox
    ready = decide.next_ready(p, ROLES, NOW_MS)
    assert isinstance(ready, Run)
    assert ready.role.name == "on_b"


def test_the_other_parts_of_a_fan_in_wait_for_another_message_in_its_place() -> None:
    roles = roles_of(a_role("meet", "A", "B"))
    p = replace(blank(), n=3, queue=(kept("meet", A, n=2, dead=DEAD),), waiting=(kept("meet", B, n=1),))
    written = heeded(p, a_command("discard"), roles)
    assert (written.snapshot.waiting, written.snapshot.queue) == (p.waiting, ())
    assert written.entry is not None
    assert written.entry.cause == A.id
    another = a_message("A", id="another")
    decision = decide.decide(written.snapshot, roles.handlers["meet"], another)
    assert isinstance(decision, Run)
    assert decision.parts == (another, B)


def test_what_had_begun_is_sealed_before_it_is_discarded_and_told() -> None:
    intent = an_intent("on_a", A)
    p = quarantined(intents=(intent,))
    command = a_command("discard")
    assert operators.heed(p, ROLES, command) == Seal(HANDLER, command)
    sealed = replace(p, intents=(replace(intent, kind="lieu"),))
    assert operators.heed(sealed, ROLES, command) == CloseSealed(HANDLER, command, sealed.intents[0])
    written = operators.discarded(
        sealed, a_hand(command, roles=ROLES), command, sealed.queue[0], remains=["step x ran"]
    )
    assert written.snapshot.intents == ()
    assert written.entry is not None
    end, escalation = written.entry.letters
    assert (end.what, escalation.what, escalation.calls) == ("discarded", "escalation", ("step x ran",))


@pytest.mark.parametrize(
    ("roles", "why"),
    [
        (roles_of(replace_role(HANDLER, after_outcome=True)), "an outcome sets on_a off"),
        (roles_of(HANDLER, a_role("ends", "Z", decides=True), outcomes="X"), "svc decides how sagas end"),
    ],
    ids=["after an outcome", "of who decides"],
)
def test_what_others_count_on_is_never_discarded(roles: Roles, why: str) -> None:
    assert why in reason(quarantined(), a_command("discard"), roles)
    assert isinstance(operators.heed(quarantined(), roles, a_command()), Replay)


def test_a_history_with_commands_is_unchanged_and_one_that_was_edited_is_not() -> None:
    roles, p = ROLES, replace(record.empty("svc", "s"), started=None)
    first, second = a_hand(A, roles=roles), a_hand(B, roles=roles)
    died = Kept(handler="on_a", message=A, n=0, dead=DEAD)
    letter = DeadLetter(id=DEAD, what="dead letter", handler="on_a", reason="r", remedy="m", message=A, attempts=1)
    hand = replace(first, before=p)
    ended = record.Ended(message=A, letters=(letter,))
    p = record.append(replace(p, queue=(died,)), hand, "dead", "on_a", ended).snapshot
    p = record.queued(p, replace(second, before=p), roles.handlers["on_b"], B, "behind", None).snapshot
    action = operators.heed(p, roles, a_command())
    assert isinstance(action, Replay)
    p = operators.heeded(p, replace(a_hand(a_command(), roles=roles), before=p), action).snapshot
    assert history.verify(p.transitions, p) is None
    assert [decode_entry(raw).outcome for raw in p.transitions] == ["dead", "queued", "replayed"]
    assert history.verify(p.transitions, replace(p, replays=0)) is not None
    assert history.verify(p.transitions, replace(p, queue=p.queue[1:])) is not None
