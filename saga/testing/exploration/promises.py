"""What must hold in every state, and at the end: the four promises of docs/protocol.md, and the books behind them."""

from saga.progress.document import Call, Entry, Snapshot, decode_entry
from saga.testing.exploration.scenario import Scenario
from saga.testing.exploration.services import SAGA
from saga.testing.exploration.world import State, World
from saga.testing.invariants import alone

TRANSITIONS_MAX = 30
"""No scenario needs more: beyond it something is decided again and again."""


class Promises:
    """The promises for one scenario."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world, self._scenario = world, scenario
        self._handlers = {h.name: h for h in scenario.service.handlers}
        self._roles = world.service.roles
        self._places = [{m: place for place, m in enumerate(dict.fromkeys(m.id for m in log))} for log in world.logs]
        self._entries: dict[int, tuple[Entry, ...]] = {}
        self._recorded: dict[int, tuple[str, ...]] = {}
        self._updates: dict[int, tuple[tuple[Entry, Call, str], ...]] = {}
        self._sound: dict[int, str | None] = {}

    def entries(self, version: int) -> tuple[Entry, ...]:
        """The transitions of that version of the progress."""
        known = self._entries.get(version)
        if known is None:
            known = self._entries[version] = tuple(map(decode_entry, self._world.snapshot(version).transitions))
            self._recorded[version] = tuple(alone.recorded(known))
            self._updates[version] = tuple(alone.updates(self._world.service.name, SAGA, known))
        return known

    # ---------------------------------------------------------------- in every state

    def broken(self, s: State) -> str | None:
        """What is broken in this state; `None` if nothing is."""
        if s.progress not in self._sound:
            self._sound[s.progress] = self._unsound(s.progress)
        return self._sound[s.progress] or self._once_outside(s) or self._once_in_documents(s) or self._in_order(s)

    def _unsound(self, version: int) -> str | None:
        """What the progress alone shows."""
        p, entries = self._world.snapshot(version), self.entries(version)
        found = alone.unsound(self._roles, p, entries) or self._out_of_log_order(entries)
        if found is not None:
            return found
        if p.n > TRANSITIONS_MAX:
            return f"NO END: {[(t.outcome, t.handler) for t in entries[-6:]]}"
        dead = [t.reason for t in entries if t.outcome == "dead"]
        if dead and not self._scenario.may_die:
            return f"DEAD LETTER {dead}"
        return None

    def _out_of_log_order(self, entries: tuple[Entry, ...]) -> str | None:
        for places in self._places:
            found = alone.out_of_log_order(self._roles, entries, places)
            if found is not None:
                return found
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
        for t, call, marker in self._updates[s.progress]:
            if (call.answer is None) != any(entry.endswith(marker) for entry in s.ledger):
                return f"RECORD AND DOCUMENT DIFFER {t.handler} {call.name} {call.number}: {call.answer}, {s.ledger}"
        return None

    def _in_order(self, s: State) -> str | None:
        return alone.out_of_recorded_order(self._recorded[s.progress], s.out)

    # ---------------------------------------------------------------- at the end

    def broken_at_the_end(self, s: State) -> str | None:
        """What is broken when nothing more can happen."""
        p, entries = self._world.snapshot(s.progress), self.entries(s.progress)
        lost = [i for i in alone.recorded(entries) if i not in s.out]
        if lost:
            return f"LOST EVENT {lost}"
        dead = any(k.dead for k in (*p.queue, *p.compensating))
        return (
            alone.stranded(p, self._roles)
            or self._lost_message(p)
            or (None if dead else self._left_standing(s, entries))
            or self._wrong_books(s)
            or self._wrong_state(p, entries)
            or self._scenario.at_the_end(p, entries)
        )

    def _lost_message(self, p: Snapshot) -> str | None:
        for m in (m for log in self._world.logs for m in log):
            handler = alone.unaccounted(p, self._roles, m.type, m.id)
            if handler is not None:
                return f"LOST MESSAGE {m.type}:{m.id} for {handler}"
        return None

    def _left_standing(self, s: State, entries: tuple[Entry, ...]) -> str | None:
        """After a failure every effect of a compensable handler is undone, or told to a person; else nothing is."""
        did = {c.what.removeprefix("do:") for c in s.outside if c.what.startswith("do:")}
        back = {c.what.removeprefix("undo:") for c in s.outside if c.what.startswith("undo:")}
        told = {letter.handler for t in entries for letter in t.letters if letter.what == "escalation"}
        failures = self._scenario.service.failures
        failed = any(m.type in failures for log in self._world.logs for m in log)
        failed = failed or any(e.type in failures for t in entries for e in t.events)
        if not failed:
            return f"UNDONE WITHOUT FAILURE {back}" if back else None
        undoable = {h.name for h in self._handlers.values() if h.undo is not None}
        left = {d for d in did - back if d.split(":")[0] in undoable - told}
        if left:
            return f"LEFT STANDING {left}"
        for name in undoable - told:
            done = [sum(e.startswith(f"{kind}:{name}:") for e in s.ledger) for kind in ("do", "undo")]
            if done[0] != done[1]:
                return f"LEFT STANDING in the document: {name} {done[0]} times, undone {done[1]} times"
        never = {b for b in back - did if b.split(":")[0] not in told}
        return f"UNDONE WHAT NEVER WAS {never}" if never else None

    def _wrong_books(self, s: State) -> str | None:
        """The document holds what it began with, less what was taken, plus what was given."""
        if self._scenario.stock is None:
            return None
        changes = {"take": -1, "take_or_open": -1, "give": 1, "give_or_open": 1}
        net = 0
        for t in self.entries(s.progress):
            for call in t.calls if t.outcome in ("handled", "compensated") else ():
                if call.kind == "update" and call.answer is None:
                    net += changes[call.name]
        left = self._world.stock_left(s.stock)
        told = any(letter.what == "escalation" for t in self.entries(s.progress) for letter in t.letters)
        if (
            left != self._scenario.stock + net + self._scenario.other - s.other
            and not told
            and not self._scenario.may_die
        ):
            return f"DOCUMENT WRONG: {left} left, began with {self._scenario.stock}, net {net}"
        return None

    def _wrong_state(self, p: Snapshot, entries: tuple[Entry, ...]) -> str | None:
        """A handler's field is set if it has run and is not undone."""
        if any(h.many for h in self._handlers.values()):
            return None
        undone = {t.handler.removeprefix("undo_") for t in entries if t.outcome == "compensated" and t.cause}
        ran = {t.handler for t in entries if t.outcome == "handled"}
        said = {name for name, value in p.state.items() if value}
        return f"STATE WRONG {said}: ran {ran}, undone {undone}" if said != ran - undone else None
