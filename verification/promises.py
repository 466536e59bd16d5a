"""Check the guarantees in every state and at the end: the four of docs/concepts/protocol.md, and those in `books`."""

import json

from saga.engine.errors import NotDeterministic, describe_exception
from saga.engine.persistence import dead_letters
from saga.messages import Message
from saga.messaging.names import ARCHIVES
from saga.progress import timers
from saga.progress.decisions import find_next_ready
from saga.progress.document import SagaProgress, StepRecord, Transition
from saga.progress.handlers import HandlerRole
from saga.progress.overflow import claim_key, list_segments, segment_key
from saga.support.clock import from_iso
from saga.testing.invariants import progress_checks
from verification import books
from verification.handlers import MISPLACED, MOVED, NEW, SAGA, SERVICE
from verification.operations import TICK_MS
from verification.scenario import Scenario
from verification.services import BAD, now_ms
from verification.state import WAKES, State
from verification.state_space import StateSpace

TRANSITIONS_MAX = 40
"""Largest number of transitions that a scenario needs. More of them indicate that something is decided again and
again."""
_NOT_DETERMINISTIC = describe_exception(NotDeterministic(""))


class Promises:
    """The guarantees that one scenario must fulfil."""

    def __init__(self, space: StateSpace, scenario: Scenario) -> None:
        self._space, self._scenario = space, scenario
        self._roles = space.service.roles
        self._messages = [m for log in space.logs for m in log]
        both = {m.id for m in space.logs[0]} & {m.id for m in space.logs[1]}  # their order is not defined
        ordered = [dict.fromkeys(m.id for m in log if m.id not in both) for log in space.logs]
        # A message that waits until the start of its saga is known lets messages for other handlers pass.
        self._apart = any(m.started is None for m in self._messages)
        self._places = [{m: place for place, m in enumerate(log)} for log in ordered]
        if scenario.ahead:  # a clock that is ahead makes messages too old: they are reported, and may come again
            self._places = []
        self._too_old = {m: dead_letters.forgotten_id(SERVICE, m) for m in self._messages}  # two may have one id
        self._recorded: dict[tuple[int, ...], tuple[str, ...]] = {}
        self._updates: dict[int, tuple[tuple[Transition, StepRecord, str], ...]] = {}
        self._sound: dict[int, str | None] = {}
        self._kept_once: set[int] = set()
        self._in_time: set[tuple[int, tuple[tuple[int, int], ...]]] = set()
        self._claims: dict[int, tuple[tuple[str, str], ...]] = {}
        """For each version of the progress, the values that are stored in documents of their own: name of the call, and
        key."""

    # ---------------------------------------------------------------- in every state

    def broken(self, s: State) -> str | None:
        """Return which guarantee is violated in this state, as readable text; `None` if all hold."""
        if s.progress not in self._sound:
            self._sound[s.progress] = self._unsound(s)
        return (
            self._sound[s.progress]
            or self._wakes_multiply(s)
            or self._not_woken(s)
            or self._woken_in_vain(s)
            or self._passed_in_time(s)
            or self._page_lost(s)
            or self._claim_lost(s)
            or self._kept_twice(s)
            or self._once_outside(s)
            or _called_twice(s)
            or self._once_in_documents(s)
            or self._in_order(s)
        )

    def _unsound(self, s: State) -> str | None:
        """Find a problem that the progress alone shows."""
        p, entries = self._space.snapshot(s.progress), self._space.entries(s, s.progress)
        found = progress_checks.find_problem(self._roles, p, entries[p.first :]) or self._out_of_log_order(entries)
        if p.first:
            found = (
                found
                or progress_checks.find_double_record(self._roles, entries)
                or progress_checks.find_wrong_compensation(self._roles, entries)
            )
        found = (
            found
            or _of_another_version(p)
            or books.ignored_without_reason(self._roles, entries)
            or self._ran_in_its_undoing(p, entries)
            or self._ran_too_early(entries)
        )
        if found is not None:
            return found
        if p.n > TRANSITIONS_MAX:
            return f"NO END: {[(t.outcome, t.handler) for t in entries[-6:]]}"
        dying = [t for t in entries if t.outcome == "dead"]
        dead = [t.reason or "" for t in dying]
        for why, loss in ((_NOT_DETERMINISTIC, "NOT DETERMINISTIC"), (MISPLACED, MISPLACED)):
            if any(why in reason for reason in dead):
                return f"{loss} {dead}"
        if not self._scenario.may_die and not all(self._is_due_to_die(t, entries) for t in dying):
            return f"DEAD LETTER {dead}"
        return None

    def _is_due_to_die(self, dead: Transition, entries: tuple[Transition, ...]) -> bool:
        """Return whether the scenario expects this dead letter, because its log has a message that can only become
        one."""
        reason = dead.reason or ""
        known = {(m.type, m.value) for m in self._messages} | {(e.type, e.value) for t in entries for e in t.events}
        if reason.startswith("already handled with other content"):
            return sum(type_ == dead.type for type_, _ in known) > 1
        if reason.startswith("older than the retention") or "longer in all than the retention" in reason:
            return self._scenario.age + self._scenario.ahead > 0
        return BAD in reason and any(m.id == dead.message and _is_bad(m, dead.handler) for m in self._messages)

    def _ran_too_early(self, entries: tuple[Transition, ...]) -> str | None:
        """Find a deadline that ran before its time although no clock was wrong."""
        if self._scenario.fast or self._scenario.ahead or not self._roles.deadlines:
            return None
        times = {m.id: m.time for m in self._messages} | {e.id: t.time for t in entries for e in t.events}
        for t in entries:
            role = self._roles.deadlines.get(t.handler)
            if role is not None and t.ran and from_iso(t.time) < from_iso(times[t.message]) + role.within_ms:
                return f"RAN TOO EARLY {t.handler}, in transition {t.n}"
        return None

    def _ran_in_its_undoing(self, p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
        """Find a run of a handler that happened after undoing its results had begun."""
        undoing = {i.handler for i in p.intents if i.kind == "undo"}
        new = entries[-1] if p.published < p.n else None  # otherwise an intent was written after the transition
        if undoing and new is not None and new.ran and new.handler in undoing:
            return f"RAN IN ITS UNDOING {new.handler}, in transition {new.n}"
        for role in self._roles.handlers.values():
            undone = [t.n for t in entries if role.undo and t.outcome == "compensated" and t.handler == role.undo.name]
            late = [t.n for t in entries if undone and t.ran and t.handler == role.name]
            if late and late[-1] > undone[0]:
                return f"RAN IN ITS UNDOING {role.name}, in transition {late[-1]} after {undone[0]}"
        return None

    def _out_of_log_order(self, entries: tuple[Transition, ...]) -> str | None:
        for places in self._places:
            found = progress_checks.find_wrong_log_order(self._roles, entries, places, apart=self._apart)
            if found is not None:
                return found
        return None

    def _wakes_multiply(self, s: State) -> str | None:
        if len(s.wakes) <= self._scenario.wakes_max:
            return None
        return f"WAKES MULTIPLY {[wake.id for wake in s.wakes]}"

    def _not_woken(self, s: State) -> str | None:
        """Find work that waits for a time, although no timer in the log is due by then and all messages are committed.
        No worker would continue it in time.

        A worker of another project (see `Scenario.stranger`) delays the timers that it gets. If there is one, work may
        be late, so any timer in the log counts.
        """
        if any(worker.turn >= 0 for worker in s.workers) or self._space.is_to_come(s):
            return None
        at = timers.compute_next_check(self._space.snapshot(s.progress), now_ms(s.passed, s.ticks))
        left = s.wakes[s.committed[WAKES] :]
        if at is None or any(wake.due_ms <= at or self._space.stranger for wake in left):
            return None
        return f"NOT WOKEN {at} by {[(wake.id, wake.due_ms) for wake in s.wakes]}"

    def _woken_in_vain(self, s: State) -> str | None:
        """Find a timer that would be renewed for ever, because only an operator, not the time, can continue the
        saga."""
        p = self._space.snapshot(s.progress)
        if p.timer is None or any(worker.turn >= 0 for worker in s.workers) or self._space.is_to_come(s):
            return None
        in_vain = find_next_ready(p, self._roles, progress_checks.AT_LAST_MS) is None
        return f"WOKEN IN VAIN by {p.timer}" if in_vain else None

    def _passed_in_time(self, s: State) -> str | None:
        """Find a deadline that ran although at its due time the log contained an event that cancels it, by itself or
        through its handler. Outcomes that no handler of the service takes do not count, because they are not read."""
        if not s.held or (s.progress, s.held) in self._in_time:
            return None
        entries = self._space.entries(s, s.progress)
        for role in self._roles.deadlines.values():
            ran = next((t.n for t in entries if t.handler == role.name and t.outcome == "handled"), None)
            due = role.within_ms // TICK_MS
            if ran is None or due > len(s.held):
                continue
            held = [m for log, end in zip(self._space.logs, s.held[due - 1], strict=True) for m in log[:end]]
            held = [m for m in held if m.type in self._space.service.consumed]
            closing = [
                m for m in held if m.type in role.unless or any(map(_closes, self._roles.by_type.get(m.type, ())))
            ]
            known = {t.message for t in entries if t.n < ran and not _is_pending(t)}
            if late := [m.id for m in closing if m.id not in known]:
                return f"CAME IN TIME {late}, and {role.name} ran in transition {ran}"
        self._in_time.add((s.progress, s.held))
        return None

    def _page_lost(self, s: State) -> str | None:
        p = self._space.snapshot(s.progress)
        if not p.segments:
            return None
        lost, pages = list[str](), [*p.segments]
        while pages:
            page = pages.pop()
            key = segment_key(SERVICE, SAGA, page)
            version = s.version_of(ARCHIVES, key)
            if not version:
                lost.append(key)
            else:
                pages += list_segments(page, self._space.content(version))
        return f"PAGE LOST {lost}" if lost else None

    def _claim_lost(self, s: State) -> str | None:
        """Find a value that should be stored in a document of its own, but is missing."""
        claims = self._claims.get(s.progress)
        if claims is None:
            p, entries = self._space.snapshot(s.progress), self._space.entries(s, s.progress)
            calls = [call for i in p.intents for call in i.calls] + [call for t in entries for call in t.calls]
            claims = tuple((call.name, claim_key(SERVICE, SAGA, call.claim)) for call in calls if call.claim)
            self._claims[s.progress] = claims
        lost = [name for name, key in claims if not s.version_of(ARCHIVES, key)]
        return f"CLAIM LOST {lost}" if lost else None

    def _kept_twice(self, s: State) -> str | None:
        """Find a message that is kept twice. The second copy would stay when the first one is handled, and would block
        the messages behind it."""
        if s.progress in self._kept_once:
            return None
        p = self._space.whole(s)
        kept = [(k.handler, k.message.id) for k in (*p.queue, *p.waiting)]
        if len(set(kept)) < len(kept):
            return f"KEPT TWICE {sorted({each for each in kept if kept.count(each) > 1})}"
        self._kept_once.add(s.progress)
        return None

    def _once_outside(self, s: State) -> str | None:
        inputs: dict[str, str] = {}
        keys: dict[str, str] = {}
        for call in s.outside:
            if inputs.setdefault(call.key, call.input) != call.input:
                return f"ONE KEY, TWO INPUTS {call.key}: {inputs[call.key]} and {call.input}"
            if keys.setdefault(call.what, call.key) != call.key:
                return f"EFFECT TWICE {call.what}: keys {keys[call.what]} and {call.key}"
        return None

    def _once_in_documents(self, s: State) -> str | None:
        if len(set(s.ledger)) != len(s.ledger):
            return f"DOCUMENT UPDATE TWICE {s.ledger}"
        if s.progress not in self._updates:
            entries = self._space.entries(s, s.progress)
            self._updates[s.progress] = tuple(progress_checks.list_updates(SERVICE, SAGA, entries))
        for t, call, marker in self._updates[s.progress]:
            if (call.answer is None) != any(entry.endswith(marker) for entry in s.ledger):
                return f"RECORD AND DOCUMENT DIFFER {t.handler} {call.name} {call.number}: {call.answer}, {s.ledger}"
        return None

    def _in_order(self, s: State) -> str | None:
        lives = (*s.past, s.progress)
        if lives not in self._recorded:
            recorded = [
                i for version in lives for i in progress_checks.list_recorded_ids(self._space.entries(s, version))
            ]
            self._recorded[lives] = tuple(recorded)
        out = s.out
        if self._aged(s):  # these reports are about forgotten sagas, so no progress records them
            out = tuple(i for i in s.out if i not in self._too_old.values())
        return progress_checks.find_wrong_publish_order(self._recorded[lives], out)

    def _aged(self, s: State) -> bool:
        """Return whether time has passed, according to at least one worker's clock."""
        return s.passed > 0 or s.ahead < self._scenario.ahead

    # ---------------------------------------------------------------- at the end

    def broken_at_the_end(self, s: State) -> str | None:
        """Return which guarantee is violated in a state in which nothing more can happen; `None` if all hold."""
        p, entries = self._space.whole(s), self._space.entries(s, s.progress)
        too_old = [m for m, id_ in self._too_old.items() if self._aged(s) and id_ in s.out]
        # A worker whose clock was ahead may have reported a message as too old before a zombie recorded work on it.
        # That work continues only when an operator replays the message.
        late = {m.id for m in too_old} if self._scenario.ahead else set()
        lives = [self._space.entries(s, version) for version in (*s.past, s.progress)]
        unread = {letter.id for life in lives for t in life for letter in t.letters if letter.message.id in late}
        lost = [
            i for life in lives for i in progress_checks.list_recorded_ids(life) if i not in s.out and i not in unread
        ]
        if lost:
            return f"LOST EVENT {lost}"
        if s.committed[WAKES] < len(s.wakes) and not self._is_forgotten(p, now_ms(s.passed, s.ticks)):
            return None  # if more time passed, the timer would continue the saga
        if p.intents and late.issuperset(i.message.id for i in p.intents):
            return None
        return (
            self._stranded(p, entries)
            or books.wrong(self._space, self._scenario, s, too_old)
            or self._scenario.at_the_end(p, entries)
        )

    def _stranded(self, p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
        """Find work that is left although nothing more can happen.

        Handlers that only the later release has may find their work when that release reads the progress. Whether it
        has read it is only known if one of them has run.
        """
        found = progress_checks.find_stranded(p, self._roles)
        added = {h.name for h in self._scenario.service.added}
        if found is None or not added or any(t.handler in added for t in entries):
            return found
        return progress_checks.find_stranded(p, self._space.services[0].roles)

    def _is_forgotten(self, p: SagaProgress, now_ms: int) -> bool:
        """Return whether overdue work is left that would never be done, whenever a worker looked at it."""
        overdue = any(due_ms <= now_ms for _, _, due_ms in timers.find_timed_work(p))
        return overdue and find_next_ready(p, self._roles, progress_checks.AT_LAST_MS) is None


def _called_twice(s: State) -> str | None:
    """Find a step that a worker repeats after its answer, although it did not crash. Because of that, a handler that
    takes an hour might never finish."""
    for w, worker in enumerate(s.workers):
        if len(set(worker.called)) < len(worker.called):
            return f"CALLED TWICE by w{w}: {worker.called}"
    return None


def _is_pending(t: Transition) -> bool:
    """Return whether a message was kept without being tried, because it is behind another one or its handler is
    paused."""
    return t.outcome == "queued" or (t.outcome == "retrying" and not t.attempt)


def _closes(role: HandlerRole) -> bool:
    return role.closes_deadlines


def _of_another_version(p: SagaProgress) -> str | None:
    """Find a state that does not fit its version, because another release wrote it or it was migrated twice."""
    odd = [name for name in p.state if name != MOVED and name.startswith(NEW) != (p.version == 2)]
    if odd or p.state.get(MOVED, p.version) != p.version:
        return f"STATE OF ANOTHER VERSION {p.version}: {p.state}"
    return None


def _is_bad(m: Message, handler: str) -> bool:
    fields = json.loads(m.value)
    return "content" not in fields or handler in fields.get("bad", ())
