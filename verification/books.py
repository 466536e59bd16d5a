"""Check the final state of a saga: every message has had a result, and every effect is justified."""

from collections.abc import Iterator, Sequence
from itertools import chain

from saga.messages import Message
from saga.messaging.message_ids import is_removal
from saga.messaging.operator_commands import TYPES, OperatorCommand
from saga.progress.decisions import find_closing_reason, is_dead_letter
from saga.progress.document import SagaProgress, Transition
from saga.progress.handlers import HandlerRole, HandlerRoles
from saga.testing.invariants import progress_checks
from verification.environment import BY
from verification.handlers import MOVED, NEW, TURNS
from verification.scenario import Scenario
from verification.services import BAD
from verification.state import State
from verification.state_space import StateSpace


def wrong(space: StateSpace, scenario: Scenario, s: State, too_old: Sequence[Message]) -> str | None:
    """Return the first problem in the final state; `None` if there is none. `too_old`: messages that were reported as
    too old."""
    return Books(space, scenario, s, too_old).wrong()


class Books:
    """Checks of the final state of a scenario, with everything that is known about it."""

    def __init__(self, space: StateSpace, scenario: Scenario, s: State, too_old: Sequence[Message]) -> None:
        self._space, self._scenario, self._s, self._too_old = space, scenario, s, too_old
        self._roles = space.service.roles
        self._handlers = {h.name: h for h in space.explored.releases[-1]}
        self._added = {h.name for h in space.explored.added}
        self._p = space.whole(s)
        self._lives = [(space.whole(s._replace(progress=v)), space.entries(s, v)) for v in (*s.past, s.progress)]
        self._entries = list(chain.from_iterable(entries for _, entries in self._lives))
        self._messages = [m for log in space.takeable(s) for m in log]

    def wrong(self) -> str | None:
        dead = self._p.is_quarantined
        return (
            self._lost_message()
            or self._unreported_discard()
            or (None if dead else self._unheard())
            or (None if dead else self._left_standing())
            or self._wrong_document()
            or self._wrong_state()
        )

    def _unreported_discard(self) -> str | None:
        """Find a run that was discarded and has had effects that were not reported. Effects of other runs of the
        handler do not count."""
        others = {t.handler for t in self._entries if t.ran}
        others |= {i.handler for p, _ in self._lives for i in p.intents}  # a discard ends the intent of its own run
        unread = {(t.handler, t.message) for t in self._entries if t.outcome == "dead" and BAD in (t.reason or "")}
        for t in self._entries:
            if (
                t.outcome == "discarded"
                and t.handler not in others
                and (t.handler, t.cause) not in unread
                and all(letter.kind != "escalation" for letter in t.letters)
            ):
                did = f"do:{t.handler}:"
                if any(c.what.startswith(did) for c in self._s.outside) or any(
                    e.startswith(did) for e in self._s.ledger
                ):
                    return f"DISCARDED AND NOT REPORTED {t.handler}"
        return None

    # ---------------------------------------------------------------- messages

    def _lost_message(self) -> str | None:
        for m in self._messages:
            is_forgotten = bool(self._s.past) and not self._p.n  # no command is recorded of a saga that is not known
            if isinstance(m, OperatorCommand) and not is_forgotten and all(t.message != m.id for t in self._entries):
                return f"LOST COMMAND {m.id}"
            if not self._too_old and not self._s.passed and not self._space.explored.tight:
                handler = progress_checks.find_unaccounted_handler(self._p, self._roles, m.type, m.id)
                if handler is not None and handler not in self._added:
                    return f"LOST MESSAGE {m.type}:{m.id} for {handler}"
            for handler in self._nothing_of(m):
                return f"LOST MESSAGE {m.type}:{m.id} of {m.source} for {handler}"
        return None

    def _nothing_of(self, m: Message) -> Iterator[str]:
        """Yield the names of the handlers, and of the handlers to be undone, for which this message was lost: no
        transition names it, and it is neither pending nor queued."""
        if m in self._too_old:
            return
        kept = {
            k.handler
            # Parts of a fan-in that never completes are forgotten with their progress.
            for k in (*self._p.queue, *self._p.compensating, *(k for p, _ in self._lives for k in p.waiting))
            if (k.message.id, k.message.source) == (m.id, m.source)
        }
        kept |= {
            c.handler for c in self._p.suspended_runs if any((q.id, q.source) == (m.id, m.source) for q in c.parts)
        }
        named = {t.handler for t in self._entries if (t.message, t.source) == (m.id, m.source) and _is_an_end(t)}
        parts = ((t, progress_checks.list_causes(t)) for t in self._entries if (t.ran or t.outcome == "discarded"))
        named |= {t.handler for t, causes in parts if len(causes) > 1 and m.id in causes}
        shelved = {t.handler for t in self._entries if (t.message, t.source) == (m.id, m.source) and not _is_an_end(t)}
        for role in self._roles.by_type.get(m.type, ()):
            dropped = role.name in shelved and any(role.name in p.closed for p, _ in self._lives)
            if role.name not in kept | named | self._added and not dropped:
                yield role.name
        for role in self._roles.undone_by.get(m.type, ()):
            assert role.undo is not None
            if role.name not in kept | self._added and role.undo.name not in named:
                yield role.name

    def _unheard(self) -> str | None:
        """Find a self-consumed event that a handler has not taken, although all its other events are there."""
        for p, entries in self._lives:
            own = _own_parts(self._roles, entries)
            for t in entries:
                for event in (e for e in t.events if e.id in own):
                    for role in self._roles.by_type[event.type]:
                        if self._is_due(p, entries, own, role, event.type, t) and not _took(entries, role, event.id):
                            return f"NEVER HEARD {event.type} is of transition {t.n}, and {role.name} has not run"
        return None

    def _is_due(
        self,
        p: SagaProgress,
        entries: Sequence[Transition],
        own: dict[str, str],
        role: HandlerRole,
        type_: str,
        emitting: Transition,
    ) -> bool:
        """Return whether a handler must have run because of this event."""
        if role.many and type_ not in role.takes[0]:
            return False  # it stays for further runs
        if p.started is None or find_closing_reason(p, role) is not None:
            return False
        if not role.many and any(t.handler == role.name and t.ran for t in entries):
            return False
        if role.may_do_without(type_):
            return False
        if role.name in self._added and type_ in self._space.services[0].roles.self_consumed_types:
            return False  # the previous release consumed it for another handler, and did not keep it
        taken_over = role.name in self._added and not any(k.handler == role.name for k in p.waiting)
        if taken_over and not any(t.handler in self._added and t.n > emitting.n for t in entries):
            return False  # it runs when the later release reads the progress, which only runs of that release prove
        there = {k.message.type for k in p.waiting if k.handler == role.name and k.undecodable is None} | set(
            own.values()
        )
        return all(types & there for types in role.takes)

    # ---------------------------------------------------------------- effects

    def _left_standing(self) -> str | None:
        """Find an effect of a handler with a compensation that is neither undone nor reported after a failure; or an
        effect that was undone without a failure."""
        s = self._s
        did = {c.what.removeprefix("do:") for c in s.outside if c.what.startswith("do:")}
        back = {c.what.removeprefix("undo:") for c in s.outside if c.what.startswith("undo:")}
        escalated = {letter.handler for t in self._entries for letter in t.letters if letter.kind == "escalation"}
        failures = self._scenario.service.failures
        failure_messages = [m for m in self._messages if m.type in failures]
        if not failure_messages and not any(e.type in failures for t in self._entries for e in t.events):
            return f"UNDONE WITHOUT FAILURE {back}" if back else None
        undone = {t.handler.removeprefix("undo_") for t in self._entries if t.outcome == "compensated"}
        if failure_messages and all(self._is_kept_or_reported(m) for m in failure_messages):
            escalated |= self._handlers.keys() - undone
        undoable = {h.name for h in self._handlers.values() if h.undo is not None}
        if not undoable - self._added:  # the first release does not consume failure outcomes
            undoable = set()
        for t in self._entries:  # abort actions must cover at least what is reported
            h = self._handlers.get(t.handler)
            is_undone = h is not None and any(e.handler == f"undo_{h.name}" for e in self._entries)
            if h is not None and h.takes_back and t.outcome == "dead" and is_undone:
                mine = [b for b in back if b.startswith(f"{h.name}:")]
                steps = [call for call in t.calls if call.kind == "step"]
                if len(mine) < len(steps):
                    return f"NOT TAKEN BACK {len(steps)} steps of {h.name}, only {mine}"
        left = {d for d in did - back if d.split(":")[0] in undoable - escalated}
        if left:
            return f"LEFT STANDING {sorted(left)}"
        for name in sorted(undoable - escalated):
            done = [sum(e.startswith(f"{kind}:{name}:") for e in s.ledger) for kind in ("do", "undo")]
            if done[0] != done[1]:
                return f"LEFT STANDING in the document: {name} {done[0]} times, undone {done[1]} times"
        never = {b for b in back - did if b.split(":")[0] not in escalated}
        return f"UNDONE WHAT NEVER WAS {sorted(never)}" if never else None

    def _is_kept_or_reported(self, m: Message) -> bool:
        """Return whether a failure outcome is kept until its saga is known, or was reported as too late."""
        kept = any(
            (k.message.id, k.message.source) == (m.id, m.source) for k in (*self._p.waiting, *self._p.compensating)
        )
        return kept or m in self._too_old

    def _wrong_document(self) -> str | None:
        """Find a wrong stock in the business document: it must be the initial stock, less what was taken, plus what was
        given."""
        if self._scenario.stock is None:
            return None
        changes = {"take": -1, "take_or_open": -1, "give": 1, "give_or_open": 1}
        net = -sum(entry.startswith(f"do:{BY}:") for entry in self._s.ledger)
        for t in self._entries:
            for call in t.calls if (t.ran or t.outcome == "compensated") else ():
                if call.kind == "update" and call.answer is None:
                    net += changes[call.name]
        left = self._space.stock_left(self._s.stock)
        escalated = any(letter.kind == "escalation" for t in self._entries for letter in t.letters)
        if (
            left != self._scenario.stock + net + self._scenario.other - self._s.other
            and not escalated
            and not any(t.outcome == "dead" and t.calls for t in self._entries)
            and not any(i.begins and is_dead_letter(p, i) for p, _ in self._lives for i in p.intents)
        ):
            return f"DOCUMENT WRONG: {left} left, began with {self._scenario.stock}, net {net}"
        return None

    def _wrong_state(self) -> str | None:
        """Find a wrong state of the saga: the field of a handler must be set exactly if the handler has run and is not
        undone."""
        if any(h.many for h in self._handlers.values()):
            return None
        _, entries = self._lives[-1]
        undone = {t.handler.removeprefix("undo_") for t in entries if t.outcome == "compensated" and t.cause}
        ran = {t.handler for t in entries if t.outcome == "handled"}
        held = {name.removeprefix(NEW): value for name, value in self._p.state.items() if name != MOVED}
        recorded = {name for name, value in held.items() if value and not name.endswith(TURNS)}
        return f"STATE WRONG {recorded}: ran {ran}, undone {undone}" if recorded != ran - undone else None


def _is_an_end(t: Transition) -> bool:
    return t.outcome not in ("waiting", "queued")


def _took(entries: Sequence[Transition], role: HandlerRole, event: str) -> bool:
    ends = ("handled", "later", "ignored", "dead")
    return any(
        t.handler == role.name and t.outcome in ends and event in (t.message, *progress_checks.list_causes(t))
        for t in entries
    )


def _own_parts(roles: HandlerRoles, entries: Sequence[Transition]) -> dict[str, str]:
    """Return the types of the self-consumed events, by id. Events of runs whose results are all undone are left out."""
    undone = {t.cause for t in entries if t.outcome == "compensated"}
    own: dict[str, str] = {}
    for t in entries:
        role = roles.handlers.get(t.handler) if t.ran else None
        results = {e.id for e in t.events if e.type in role.undo.results} if role is not None and role.undo else set()
        if not results or not results <= undone:
            own |= {e.id: e.type for e in t.events if e.type in roles.by_type and e.id not in undone}
    return own


def ignored_without_reason(roles: HandlerRoles, entries: Sequence[Transition]) -> str | None:
    """Find a message that was ignored without a reason: its handler is not closed, has not run and does not wait for
    other events, and there is no outcome."""
    last = entries[-1] if entries else None
    if last is None or last.outcome != "ignored" or last.type in TYPES:
        return None
    role, before = roles.handlers[last.handler], entries[:-1]
    if role.is_deadline and any(
        type_ in role.unless for t in before for type_ in (t.type, *(e.type for e in t.events))
    ):
        return None
    if role.undo is not None and any(t.outcome == "compensated" and t.type in role.undo.outcomes for t in before):
        return None
    if role.undo is not None and any(e.type in role.undo.outcomes for t in before for e in t.events):
        return None
    if role.undo is not None and any(  # the compensation waits for another one; this handler is undone next
        t.outcome in ("waiting", "retrying") and t.type in role.undo.outcomes and t.handler != role.undo.name
        for t in before
    ):
        return None
    if role.decides and any(e.type in roles.outcomes for t in before for e in t.events):
        return None
    if role.may_do_without(last.type):
        return None if any(t.handler == role.name and t.outcome == "handled" for t in before) else "IGNORED TOO EARLY"
    index = role.parameter_of(last.type)
    if role.many and index == 0:
        return f"IGNORED WITHOUT REASON {last.type}:{last.message} for {role.name}"
    if last.type in role.changes and is_removal(last.message):
        return None
    for t in before:
        if t.handler == role.name and (t.ran or t.outcome == "waiting") and t.message != last.message:
            return None
        if t.handler == role.name and t.ran:
            return None
        if any(e.type in role.takes[index] for e in t.events):  # a self-consumed event
            return None
    return f"IGNORED WITHOUT REASON {last.type}:{last.message} for {role.name}"
