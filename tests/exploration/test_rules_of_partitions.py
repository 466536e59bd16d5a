"""The note that a partition has messages in processing, explored: the next owner after a crash always finds it.

A model of one partition, two workers and the broker: `saga.engine.consumer.partition_listener` begins, reads, ends.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import pytest


class Worker(NamedTuple):
    """A worker as far as the partition goes."""

    stage: str = "out"
    """`out`, `assigned`, `begun`; `leaving` while it gives the partition up."""
    in_hand: bool = False
    guards: bool = False
    has_taken: bool = False


class State(NamedTuple):
    """The broker, and both workers."""

    noted: bool = False
    owner: int = -1
    died_with: bool = False
    """True from a death with a message in hand on, until a guarding worker has the partition."""
    workers: tuple[Worker, Worker] = (Worker(), Worker())


Moves: TypeAlias = Callable[["State", int], Iterator[tuple[str, "State"]]]


def _with(s: State, w: int, worker: Worker, **more: object) -> State:
    workers = (worker, s.workers[1]) if w == 0 else (s.workers[0], worker)
    return s._replace(workers=workers, **more)  # type: ignore[arg-type] # fields of a state


def moves(
    s: State, w: int, *, reads_at_once: bool = False, never_ends: bool = False, tells_of_runs: bool = False
) -> Iterator[tuple[str, State]]:
    """Each thing that a worker can do next. `reads_at_once`: without waiting for the note. `never_ends`: its leaving
    takes no note away; `tells_of_runs`: nor does it while something runs."""
    me = s.workers[w]
    owns = s.owner == w
    if me.stage == "out" and s.owner == -1:
        assigned = Worker("assigned", guards=s.noted)
        yield "is given the partition", _with(s, w, assigned, owner=w)
    if me.stage == "assigned":
        if owns:
            yield "notes", _with(s, w, me._replace(stage="begun"), noted=True)
            yield "notes, answer lost", s._replace(noted=True)
        yield "lets go of it", _with(s, w, Worker(), owner=-1 if owns else s.owner)
    if (me.stage == "begun" or (reads_at_once and me.stage == "assigned")) and not me.in_hand:
        safe = s.died_with and me.guards
        yield (
            "takes a message",
            _with(s, w, me._replace(in_hand=True, has_taken=True), died_with=s.died_with and not safe),
        )
    if me.in_hand:
        yield "brings it to its end", _with(s, w, me._replace(in_hand=False))
    if me.stage == "begun":
        yield "is to leave", _with(s, w, me._replace(stage="leaving"))
    if me.stage == "leaving":  # what runs goes on, and if it kills later, so it does who has the partition by then
        yield "leaves, and cannot say so", _with(s, w, Worker(), owner=-1 if owns else s.owner)
        if owns:
            keeps = me.guards and not me.has_taken
            yield (
                "leaves",
                _with(
                    s, w, Worker(), owner=-1, noted=s.noted and (keeps or never_ends or (tells_of_runs and me.in_hand))
                ),
            )
    if me.stage != "out":
        # Of what it has in hand when it has lost the partition it may die later: the next owner learns of it now.
        went = s._replace(died_with=s.died_with or (owns and me.in_hand))
        if owns:
            yield "loses it", went._replace(owner=-1)
        yield "dies", _with(went, w, Worker(), owner=-1 if owns else s.owner)


def losses(move: Moves) -> list[str]:
    """Ways in which a worker that does not guard takes a message, after a death with it in hand."""
    first = State()
    seen, todo, found = {first}, deque([first]), list[str]()
    while todo:
        s = todo.popleft()
        for w in (0, 1):
            for what, after in move(s, w):
                taken = what == "takes a message" and s.died_with and not s.workers[w].guards
                # A zombie, which has lost the partition, dies for itself: the owner has learnt of it, or not.
                if taken and s.owner == w and not any(other.in_hand for other in s.workers):
                    found.append(f"w{w} {what} in {s}")
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
    return found


def needlessly_guarded(move: Moves) -> bool:
    """True if two workers after one another, who leave in good order, have the second one guard: of a message that
    takes its time three rebalances would make a dead letter."""
    return any(_guards(move, ends) for ends in (("brings it to its end",), ()))


def _guards(move: Moves, ends: tuple[str, ...]) -> bool:
    s = State()
    for wanted in ("is given the partition", "notes", "takes a message", *ends, "is to leave", "leaves"):
        s = dict(move(s, 0))[wanted]
    return dict(move(s, 1))["is given the partition"].workers[1].guards


def the_partition_guard_is_written_after_a_message_runs(s: State, w: int) -> Iterator[tuple[str, State]]:
    return moves(s, w, reads_at_once=True)


def the_note_outlives_an_owner_that_leaves_cleanly(s: State, w: int) -> Iterator[tuple[str, State]]:
    return moves(s, w, never_ends=True)


def test_the_next_owner_of_a_partition_knows_that_the_last_one_died() -> None:
    assert losses(moves) == []
    assert not needlessly_guarded(moves)


def _loses(move: Moves) -> bool:
    return bool(losses(move))


def an_abandoned_run_counts_as_a_crash(s: State, w: int) -> Iterator[tuple[str, State]]:
    return moves(s, w, tells_of_runs=True)


RULES: dict[Moves, Callable[[Moves], bool]] = {
    the_partition_guard_is_written_after_a_message_runs: _loses,
    the_note_outlives_an_owner_that_leaves_cleanly: needlessly_guarded,
    an_abandoned_run_counts_as_a_crash: needlessly_guarded,
}


@pytest.mark.parametrize("without", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_a_death_is_missed_or_a_false_one_assumed(without: Moves) -> None:
    assert RULES[without](without)
