"""Writing down: each transition with its inbox, queue and parts; bounded, in order, and never more than was decided."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from saga.messages import Message
from saga.progress import compensation, failed_attempts, ids, journal
from saga.progress.actions import Compensate, Enqueue, Now, RunHandler
from saga.progress.decisions import decide, find_newest_result, find_next_ready
from saga.progress.document import (
    PLAIN,
    VERSIONED,
    CompensableResult,
    Intent,
    OverflowSegment,
    PendingMessage,
    SagaProgress,
    SegmentKind,
    SelfConsumedEvent,
    StepRecord,
    SuspendedRun,
    decode_progress,
    decode_transition,
    encode,
)
from saga.progress.failed_attempts import RunFailure
from saga.progress.handlers import CompensationRole, HandlerRole, HandlerRoles, compensation_name
from saga.progress.journal import INBOX_MAX, Commit, TransitionDetails
from saga.support.clock import iso
from tests.progress.pieces import NOW_MS, START, a_hand, a_message, a_role, an_intent, blank, kept, roles_of

UNDO = CompensationRole(name="undo", outcomes=frozenset({"Failed"}), results=frozenset({"R"}))
ALONE = a_role("alone", "A", undo=UNDO)
BOTH = a_role("both", "A", "B")
MANY_BOTH = a_role("many_both", "A", "B", many=True)
ROLES = roles_of(ALONE, BOTH, MANY_BOTH, outcomes="Failed Over", emitted="R Failed B Over")
FAILURE = RunFailure(reason="why", remedy="mend", attempts=1)
CALL = StepRecord(kind="step", name="charge", number=1, input="")
NOW = Now(NOW_MS, retention_s=10**6)
A, B, FAILED = a_message("A"), a_message("B"), a_message("Failed")
OWN = a_message("Own")
IN_TIME = HandlerRole(name="in_time", takes=(frozenset({"Own"}),), within_ms=1000)
TAKERS = roles_of(ALONE, BOTH, a_role("takes_own", "Own"), IN_TIME, outcomes="Failed", emitted="R Failed Own")


def handled(
    p: SagaProgress,
    role: HandlerRole,
    *parts: Message,
    events: Sequence[Message] = (),
    now_ms: int = NOW_MS,
    roles: HandlerRoles = ROLES,
) -> SagaProgress:
    """The handler has run on these."""
    cause = "+".join(sorted(part.id for part in parts))
    ended = TransitionDetails(cause=cause, message=parts[0], parts=parts, events=events)
    return journal.complete_run(p, a_hand(parts[0], roles=roles, now_ms=now_ms), role, ended).snapshot


def died(p: SagaProgress, role: HandlerRole, message: Message) -> SagaProgress:
    """The message was given up for this handler."""
    return failed_attempts.give_up(p, a_hand(message), RunHandler(role, message, (message,)), FAILURE, None).snapshot


def queued(p: SagaProgress, role: HandlerRole, message: Message) -> SagaProgress:
    return journal.enqueue_message(p, a_hand(message), role, message, "because", None).snapshot


# ---------------------------------------------------------------- the inbox


def test_inbox_entries_are_dropped_by_age_and_only_when_there_are_many() -> None:
    p, role = blank(), a_role("alone", "A", many=True)
    for n in range(INBOX_MAX):
        p = handled(p, role, a_message(id=f"old-{n}"))
    late = NOW_MS + 100_000  # just not older than the memory
    for n in range(10):
        p = handled(p, role, sent(f"late-{n}", late), now_ms=late)
    assert len(p.inbox) == INBOX_MAX + 10
    p = handled(p, role, sent("later", late + 1000), now_ms=late + 1000)
    assert len(p.inbox) == 11
    assert ids.inbox_entry("late-0", "alone") in p.inbox
    assert ids.inbox_entry("later", "alone") in p.inbox


def sent(id: str, ms: int) -> Message:
    return replace(a_message(id=id), time=iso(ms))


def aged(p: SagaProgress) -> dict[str, int]:
    """The inbox after a write long after, with many old entries in it beside those of `p`."""
    p = replace(p, inbox={**p.inbox, **{f"old-{n}": 0 for n in range(INBOX_MAX)}})
    return handled(p, ALONE, sent("later", NOW_MS + 10**9), now_ms=NOW_MS + 10**9).inbox


def test_inbox_entries_of_kept_messages_are_never_removed() -> None:
    for p in (
        replace(blank(), self_consumed=(SelfConsumedEvent(event=B, n=0),)),
        replace(blank(), queue=(kept("both", B),)),
        replace(blank(), waiting=(kept("both", B),)),
        replace(blank(), intents=(an_intent("both", B),)),
    ):
        entry = ids.inbox_entry(B.id, "many_both")
        assert entry in aged(replace(p, inbox={entry: 0})), "its other handler would run again"
    undone = ids.inbox_entry(FAILED.id, compensation_name("alone"))
    assert undone in aged(replace(blank(), compensating=(kept("other", FAILED),), inbox={undone: 0}))
    assert len(aged(replace(blank(), inbox={ids.inbox_entry(B.id, "many_both"): 0}))) == 1


def test_a_small_inbox_keeps_entries_of_any_age() -> None:
    p, role = blank(), a_role("alone", "A", many=True)
    for n in range(INBOX_MAX):
        p = handled(p, role, a_message(id=f"m-{n}"), now_ms=NOW_MS + n * 1_000_000)
    assert len(p.inbox) == INBOX_MAX


# ---------------------------------------------------------------- fan-in


def test_the_parts_of_a_run_are_ended_together() -> None:
    p = journal.keep_pending(blank(), a_hand(A), BOTH, A, "for B").snapshot
    assert [k.message for k in p.waiting] == [A]
    p = handled(p, BOTH, A, B)
    assert p.waiting == ()
    assert {ids.inbox_entry(A.id, "both"), ids.inbox_entry(B.id, "both")} == set(p.inbox)
    assert [(r.parameter, r.message) for r in p.completed_runs] == [(0, A.id), (1, B.id)]


def test_a_repeating_handler_consumes_the_first_part_and_keeps_the_others() -> None:
    p = journal.keep_pending(blank(), a_hand(B), MANY_BOTH, B, "for A").snapshot
    for n in range(3):
        message = a_message(value=b"%d" % n)
        assert decide(p, MANY_BOTH, message, now=NOW) == RunHandler(MANY_BOTH, message, (message, B))
        p = handled(p, MANY_BOTH, message, B)
    assert [k.message for k in p.waiting] == [B]
    assert p.completed_runs == ()
    assert len(p.inbox) == 3


def test_first_parts_that_came_before_the_other_part_all_run_in_order() -> None:
    p = blank()
    firsts = [a_message(value=b"%d" % n) for n in range(3)]
    for message in firsts:
        p = journal.keep_pending(p, a_hand(message), MANY_BOTH, message, "for B").snapshot
    assert decide(p, MANY_BOTH, B, now=NOW) == RunHandler(MANY_BOTH, B, (firsts[0], B))
    p = journal.keep_pending(p, a_hand(B), MANY_BOTH, B, "-").snapshot
    run = []
    while (ready := find_next_ready(p, roles_of(MANY_BOTH), NOW.ms)) is not None:
        assert isinstance(ready, RunHandler)
        assert ready.message == ready.parts[0], "the part that is used up stands for the run"
        run.append(ready.parts)
        p = handled(p, MANY_BOTH, *ready.parts)
    assert run == [(first, B) for first in firsts]


# ---------------------------------------------------------------- when the saga began


def test_a_message_without_the_start_of_its_saga_runs_once_another_has_brought_it() -> None:
    unknown = replace(A, started=None)
    roles = roles_of(ALONE, a_role("other", "B"))
    p = journal.keep_pending(blank(started=None), a_hand(unknown), ALONE, unknown, "no start").snapshot
    assert p.started is None
    assert find_next_ready(p, roles, NOW.ms) is None
    p = handled(p, roles.handlers["other"], B, roles=roles)
    assert p.started == START
    ready = find_next_ready(p, roles, NOW.ms)
    assert ready is not None
    assert (ready.role, ready.message) == (ALONE, unknown)


def test_the_start_is_that_of_the_first_message() -> None:
    p = handled(blank(started=None), ALONE, A)
    p = handled(p, BOTH, replace(A, started="2030-01-01T00:00:00.000Z"), B)
    assert p.started == START


# ---------------------------------------------------------------- quarantine


def test_a_dead_letter_stays_at_the_head_and_what_comes_later_queues_behind_it_in_order() -> None:
    role = a_role("alone", "A", many=True)
    p = died(blank(), role, A)
    for n in range(3):
        message = a_message(value=b"later %d" % n)
        assert isinstance(decide(p, role, message, now=NOW), Enqueue)
        p = queued(p, role, message)
    assert [k.message.value for k in p.queue] == [b"1", b"later 0", b"later 1", b"later 2"]
    assert p.queue[0].dead is not None
    assert find_next_ready(p, roles_of(role), NOW.ms) is None
    assert p.is_open


def test_a_queued_message_that_becomes_a_dead_letter_keeps_its_place() -> None:
    role = a_role("alone", "A", many=True)
    p = queued(queued(blank(), role, A), role, a_message(value=b"2"))
    p = died(p, role, A)
    assert [(k.message.value, k.dead is not None) for k in p.queue] == [(b"1", True), (b"2", False)]


def test_an_outcome_passes_a_quarantine_and_drops_the_dead_original() -> None:
    later = [a_message("B", value=b"%d" % n) for n in range(2)]
    other = a_role("other", "B", many=True)
    roles = roles_of(ALONE, other, outcomes="Failed", emitted="R Failed")
    p = died(blank(), ALONE, A)
    for message in later:
        p = queued(p, other, message)
    written = compensation.close_without_results(p, a_hand(FAILED), ALONE, FAILED)
    p = written.snapshot
    assert p.closed == ("alone",)
    assert written.entry is not None
    assert [letter.kind for letter in written.entry.letters] == ["dropped"]
    assert ids.inbox_entry(FAILED.id, compensation_name("alone")) in p.inbox
    assert ids.inbox_entry(A.id, "alone") in p.inbox
    run = []
    while (ready := find_next_ready(p, roles, NOW.ms)) is not None:
        run.append(ready.message)
        p = handled(p, other, ready.message, roles=roles)
    assert run == later


def test_a_dead_letter_that_was_never_due_to_run_quarantines_nothing() -> None:
    written = journal.reject_message(blank(), a_hand(A), ALONE, A, "it says something else", "look why")
    p = written.snapshot
    assert (p.queue, set(p.inbox)) == ((), {ids.inbox_entry(A.id, "alone")})
    assert written.entry is not None
    (letter,) = written.entry.letters
    assert (written.entry.outcome, letter.reason, letter.remedy) == ("dead", "it says something else", "look why")


# ---------------------------------------------------------------- intents, results, own events


def test_a_new_intent_replaces_only_the_one_of_its_run() -> None:
    p = replace(blank(), n=3, intents=(an_intent("other", B), an_intent("alone", A)))
    newer = replace(an_intent("alone", A), time="later")
    written = journal.open_intent(p, a_hand(A), newer)
    assert written.entry is None
    assert written.snapshot.intents == (an_intent("other", B), newer)
    assert (written.snapshot.n, written.snapshot.published) == (3, 3)


def test_an_intent_keeps_the_start_of_the_saga() -> None:
    p = journal.open_intent(blank(started=None), a_hand(A), an_intent("alone", A)).snapshot
    assert p.started == A.started == START
    client = replace(B, started=None)
    assert journal.open_intent(p, a_hand(client), an_intent("both", client)).snapshot.started == START


def test_runs_of_one_handler_on_other_messages_have_intents_of_their_own() -> None:
    another = an_intent("alone", a_message(value=b"2"))
    p = replace(blank(started=None), intents=(another,))
    p = journal.open_intent(p, a_hand(A), an_intent("alone", A)).snapshot
    assert p.intents == (another, an_intent("alone", A))
    assert p.started == START, "the first thing that is written says when the saga began"
    newer = replace(an_intent("alone", A), begins=CALL)
    died = failed_attempts.give_up(p, a_hand(A), RunHandler(ALONE, A, (A,)), FAILURE, newer).snapshot
    assert died.intents == (another, newer), "with what is known of its last call"


def test_the_end_of_a_run_ends_its_intent_and_no_other() -> None:
    p = replace(blank(), intents=(an_intent("both", A, B), an_intent("alone", A)))
    assert handled(p, ALONE, A).intents == (an_intent("both", A, B),)


def test_a_compensable_result_names_the_self_consumed_events_of_its_run() -> None:
    result, part = a_message("R"), a_message("B", id="own")
    p = handled(blank(), ALONE, A, events=[result, part])
    assert p.results == (CompensableResult(handler="alone", cause=A.id, event=result, self_consumed_ids=("own",)),)
    assert p.self_consumed == (SelfConsumedEvent(event=part, n=0),)


def test_undoing_the_last_result_of_a_run_withdraws_its_self_consumed_events_and_closes_the_handler() -> None:
    first, second, part = a_message("R", id="r1"), a_message("R", id="r2"), a_message("B", id="own")
    p = handled(blank(), ALONE, A, events=[first, second, part])
    closed = []
    for event in (second, first):
        result = find_newest_result(p, "alone")
        assert result.event == event
        p = compensation.complete_compensation(
            p, a_hand(FAILED, roles=ROLES), ALONE, result, TransitionDetails(message=FAILED)
        ).snapshot
        closed.append((p.closed, [own.event.id for own in p.self_consumed]))
    assert closed == [((), ["own"]), (("alone",), [])]


def withdrawn(*queue: PendingMessage, intents: tuple[Intent, ...] = (), later: tuple[SuspendedRun, ...] = ()) -> Commit:
    """What is written when the result is undone with which `OWN` was emitted, while this is queued."""
    did = handled(blank(), ALONE, A, events=[a_message("R"), OWN], roles=TAKERS)
    p = replace(did, queue=queue, intents=intents, suspended_runs=later)
    return compensation.complete_compensation(
        p, a_hand(FAILED, roles=TAKERS), ALONE, find_newest_result(p, "alone"), TransitionDetails(message=FAILED)
    )


def test_a_failed_run_of_a_withdrawn_event_never_runs_again() -> None:
    written = withdrawn(kept("takes_own", OWN), kept("both", A))
    assert [k.handler for k in written.snapshot.queue] == ["both"]
    assert ids.inbox_entry(OWN.id, "takes_own") in written.snapshot.inbox
    assert written.entry is not None
    assert (written.entry.letters, written.entry.reason) == (
        (), "withdrawn, and never handled by takes_own, which had failed on it",
    )  # fmt: skip


def test_a_dead_letter_of_a_withdrawn_event_is_dropped_and_that_is_recorded() -> None:
    written = withdrawn(kept("takes_own", OWN, dead="d"), kept("alone", a_message(value=b"2"), dead="e"))
    assert written.snapshot.queue == ()
    assert written.entry is not None
    assert [(letter.id, letter.kind, letter.reason) for letter in written.entry.letters] == [
        ("d-dropped", "dropped", "Own is withdrawn: takes_own never runs on it"),
        ("e-dropped", "dropped", "Failed has closed alone: the message will never be handled"),
    ]


def test_a_begun_run_or_a_deadline_of_a_withdrawn_event_stays() -> None:
    stays = kept("takes_own", OWN)
    assert withdrawn(stays, intents=(an_intent("takes_own", OWN),)).snapshot.queue == (stays,)
    goes_on = SuspendedRun(handler="takes_own", parts=(OWN,), n=0, turn=1, first_ms=0, seen_ms=0, due_ms=0)
    assert withdrawn(stays, later=(goes_on,)).snapshot.queue == (stays,)
    deadline = kept("in_time", OWN, dead="d")
    assert withdrawn(deadline).snapshot.queue == (deadline,)


def test_undoing_the_last_result_records_that_dead_originals_are_dropped() -> None:
    p = handled(blank(), ALONE, A, events=[a_message("R")])
    p = replace(p, queue=(kept("alone", a_message(value=b"2"), dead="d"),))
    written = compensation.complete_compensation(
        p, a_hand(FAILED, roles=ROLES), ALONE, find_newest_result(p, "alone"), TransitionDetails(message=FAILED)
    )
    assert written.entry is not None
    assert [(letter.id, letter.kind) for letter in written.entry.letters] == [("d-dropped", "dropped")]


def test_a_failure_outcome_of_the_service_starts_its_own_compensations() -> None:
    p = handled(blank(), BOTH, A, B, events=[FAILED, a_message("Over")])
    assert p.outcome == "Failed"
    assert [(k.handler, k.message) for k in p.compensating] == [("alone", FAILED)]


def test_a_self_consumed_event_that_all_handlers_have_taken_is_removed() -> None:
    p = handled(blank(), ALONE, A, events=[a_message("B", id="own")])
    p = handled(p, BOTH, A, a_message("B", id="own"))
    assert [own.event.id for own in p.self_consumed] == ["own"], "many_both may still take it"
    p = replace(p, inbox={**p.inbox, ids.inbox_entry("own", "many_both"): 0})
    assert handled(p, ALONE, a_message(id="A-3")).self_consumed == ()


def test_a_self_consumed_event_that_no_handler_will_take_is_removed() -> None:
    p = replace(blank(), closed=("many_both",))
    p = handled(p, BOTH, A, a_message("B"), events=[a_message("R")])
    for n in range(3):  # of `both` the first was enough, and it has run
        p = handled(p, ALONE, a_message(id=f"A-{n}"), events=[a_message("B", id=f"own-{n}")])
    assert len(p.self_consumed) == 3, "one that is closed has each ignored, visibly"
    inbox = {ids.inbox_entry(own.event.id, "many_both"): 0 for own in p.self_consumed}
    assert handled(replace(p, inbox={**p.inbox, **inbox}), ALONE, a_message(id="A-4")).self_consumed == ()


def test_a_progress_with_a_state_version_is_refused_by_older_toolkits() -> None:
    assert (journal.new_progress("svc", "s", 1).format, journal.new_progress("svc", "s", 2).format) == (
        PLAIN,
        VERSIONED,
    )


# ---------------------------------------------------------------- closing


def test_closing_a_handler_drops_only_its_own_kept_messages() -> None:
    p = replace(
        blank(),
        queue=(kept("alone", A, dead="d"), kept("both", A, dead="e"), kept("alone", a_message(value=b"2"))),
        waiting=(kept("alone", a_message(value=b"3")), kept("both", B)),
        compensating=(kept("alone", FAILED), kept("other", FAILED)),
    )
    written = compensation.close_without_results(p, a_hand(FAILED), ALONE, FAILED)
    p = written.snapshot
    assert [(k.handler, k.dead) for k in p.queue] == [("both", "e")]
    assert [k.handler for k in p.waiting] == ["both"]
    assert [k.handler for k in p.compensating] == ["other"]
    assert set(p.inbox) == {
        ids.inbox_entry(FAILED.id, compensation_name("alone")),
        *(ids.inbox_entry(f"A-{n}", "alone") for n in (1, 2, 3)),
    }
    assert written.entry is not None
    assert [(letter.id, letter.handler) for letter in written.entry.letters] == [("d-dropped", "alone")]


@pytest.mark.parametrize("stands", [[], ["step charge ran", "update set_aside on stock/tea was applied"]])
def test_an_abort_escalates_the_calls_that_remain_in_effect(stands: list[str]) -> None:
    p = replace(blank(), queue=(kept("alone", A, dead="d"),), intents=(an_intent("alone", A), an_intent("both", A, B)))
    p = journal.open_intent(p, a_hand(FAILED), compensation.make_abort_intent(p, ALONE)).snapshot
    assert [i.kind for i in p.intents] == ["do", "lieu"]
    written = compensation.complete_abort(p, a_hand(FAILED), ALONE, FAILED, remains=stands)
    assert [i.handler for i in written.snapshot.intents] == ["both"]
    assert written.snapshot.closed == ("alone",)
    assert written.entry is not None
    escalations = [letter for letter in written.entry.letters if letter.kind == "escalation"]
    assert [letter.calls for letter in escalations] == ([tuple(stands)] if stands else [])
    assert [letter.kind for letter in written.entry.letters][-1] == "dropped"


# ---------------------------------------------------------------- the transition


def test_a_pending_message_that_is_queued_is_no_longer_pending() -> None:
    p = queued(journal.keep_pending(blank(), a_hand(A), BOTH, A, "for B").snapshot, BOTH, A)
    assert ([k.message for k in p.queue], p.waiting) == ([A], ())
    p = journal.keep_pending(p, a_hand(A), BOTH, A, "for B").snapshot
    assert (p.queue, [k.message for k in p.waiting]) == ((), [A])


def test_a_queued_message_that_is_pending_again_keeps_its_order() -> None:
    first, third = (kept("many_both", a_message("A", id=id_), n) for id_, n in (("A-1", 1), ("A-3", 3)))
    p = replace(blank(), n=7, queue=(kept("many_both", a_message("A", id="A-2"), 2),), waiting=(first, third))
    p = journal.keep_pending(p, a_hand(A), MANY_BOTH, p.queue[0].message, "for B").snapshot
    assert (p.queue, [(k.message.id, k.n) for k in p.waiting]) == ((), [("A-1", 1), ("A-2", 2), ("A-3", 3)])


def test_a_transition_names_its_cause_only_if_it_differs_from_the_message() -> None:
    alone = decode_transition(handled(blank(), ALONE, A).transitions[0])
    both = decode_transition(handled(blank(), BOTH, A, B).transitions[0])
    assert (alone.cause, both.cause) == ("", "A-1+B-1")


def test_a_transition_names_its_position_only_if_it_is_known() -> None:
    written = journal.ignore_message(blank(), a_hand(A), ALONE, A, "why")
    assert written.entry is not None
    assert written.entry.position == ("things", 0, 0)
    written = journal.ignore_message(blank(), replace(a_hand(A), position=None), ALONE, A, "why")
    assert written.entry is not None
    assert written.entry.position is None


def test_each_transition_marks_those_before_it_as_published() -> None:
    p = handled(blank(), ALONE, A)
    assert (p.n, p.published) == (1, 0)
    p = journal.ignore_message(p, a_hand(B), BOTH, B, "why").snapshot
    assert (p.n, p.published) == (2, 1)


@pytest.mark.parametrize(
    ("p", "is_open"),
    [
        (blank(), False),
        (replace(blank(), waiting=(kept("both", A),)), False),
        (replace(blank(), queue=(kept("both", A),)), True),
        (replace(blank(), compensating=(kept("alone", FAILED),)), True),
        (replace(blank(), intents=(an_intent("alone", A),)), True),
    ],
)
def test_an_open_progress_never_expires_and_a_pending_message_alone_does_not_open_it(
    p: SagaProgress, is_open: bool
) -> None:
    assert p.is_open == is_open
    assert decode_progress(encode(p)) == p


# ---------------------------------------------------------------- compensations that wait, and pages


def test_an_outcome_is_kept_once_for_its_compensation_and_names_what_it_waits_for() -> None:
    p, reasons = blank(), []
    for known in (True, False):
        written = compensation.delay_compensation(p, a_hand(FAILED), ALONE, FAILED, known=known)
        p = written.snapshot
        assert written.entry is not None
        reasons.append(written.entry.reason)
    assert [(k.handler, k.message) for k in p.compensating] == [("alone", FAILED)]
    assert reasons == [
        "alone has begun and is brought to its end first",
        "no message with the start of this saga has come yet",
    ]


def test_closing_a_handler_drops_its_messages_in_segments_without_reading_them() -> None:
    def page(of: SegmentKind, *handlers: str) -> OverflowSegment:
        return OverflowSegment(
            kind=of,
            name=f"{of}-{handlers}",
            count=1,
            newest=0,
            items_digest="0x1",
            inbox_digest="0x2",
            handlers=handlers,
        )

    pages = (page("waiting", "alone"), page("waiting", "both"), page("queue", "alone"), page("inbox"))
    write_context = a_hand(FAILED)
    p = compensation.close_without_results(replace(blank(), segments=pages), write_context, ALONE, FAILED).snapshot
    assert p.segments[0] == pages[0].closed(
        write_context.entered_s, write_context.entered_s + write_context.retention_s
    )
    assert p.segments[1:] == pages[1:]


@pytest.mark.parametrize("undoes", [False, True])
def test_a_dead_letter_stored_without_its_bytes_keeps_its_place(undoes: bool) -> None:
    result = CompensableResult(handler="alone", cause=A.id, event=a_message("R"), self_consumed_ids=())
    action = Compensate(ALONE, FAILED, result) if undoes else RunHandler(ALONE, A, (A,))
    message = action.message
    p = replace(blank(), n=7, queue=(kept("both", A),), waiting=(kept("alone", A), kept("both", B)))
    p = replace(p, compensating=(kept("alone", FAILED),))
    written = failed_attempts.give_up_without_content(p, a_hand(message), action, letter="letter-1", reason="too large")
    p = written.snapshot
    [dead] = [k for k in (*p.queue, *p.compensating) if k.dead]
    assert (dead.handler, dead.message) == ("alone", replace(message, value=b""))
    assert dead.n == (7 if undoes else p.queue[1].n), "what is behind it in the queue keeps its place"
    assert (dead.dead, dead.undecodable) == ("letter-1", "too large")
    assert [k.handler for k in p.queue] == (["both"] if undoes else ["alone", "both"])
    assert [k.handler for k in p.waiting] == (["alone", "both"] if undoes else ["both"])
    assert [k.dead for k in p.compensating] == (["letter-1"] if undoes else [None])
    assert written.entry is not None
    assert (written.entry.outcome, written.entry.handler) == ("dead", "undo" if undoes else "alone")
    assert (written.entry.reason, written.entry.letters) == ("too large", ())


@pytest.mark.parametrize(
    ("started", "principal", "message", "known"),
    [
        (None, None, replace(a_message("A"), principal="ada"), "ada"),
        (None, None, a_message("A"), None),
        (None, None, replace(a_message("A", started=None), principal="eve"), None),
        (START, None, replace(a_message("A"), principal="eve"), None),
        (START, "ada", replace(a_message("A"), principal="eve"), "ada"),
        (START, "ada", a_message("A"), "ada"),
    ],
)
def test_the_principal_of_a_saga_comes_only_from_the_message_with_its_start(
    started: str | None, principal: str | None, message: Message, known: str | None
) -> None:
    p = replace(blank(started), principal=principal)
    assert journal.determine_principal(p, message) == known
    assert journal.open_intent(p, a_hand(message), an_intent("reserve", message)).snapshot.principal == known
    ignored = journal.ignore_message(p, a_hand(message), a_role("reserve", "A"), message, "because").snapshot
    assert ignored.principal == known


def test_an_undone_event_is_withdrawn_while_its_run_has_other_results() -> None:
    role = a_role(
        "each", "A", undo=CompensationRole(name="undo_each", outcomes=frozenset({"X"}), results=frozenset({"R"}))
    )
    roles = roles_of(role, a_role("join", "R", "B"), emitted="R")
    one, two = (replace(a_message("R", name), source="svc") for name in ("r1", "r2"))
    results = tuple(
        CompensableResult(handler="each", cause="a", event=e, self_consumed_ids=("r1", "r2"), n=0) for e in (one, two)
    )
    p = replace(
        blank(),
        n=1,
        results=results,
        self_consumed=(SelfConsumedEvent(event=one, n=0), SelfConsumedEvent(event=two, n=0)),
    )
    x = a_message("X")
    after = compensation.complete_compensation(
        p, a_hand(x, roles=roles), role, results[1], TransitionDetails(message=x)
    ).snapshot
    assert [own.event.id for own in after.self_consumed] == ["r1"]
