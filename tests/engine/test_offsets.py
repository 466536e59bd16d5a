"""Offsets: what may be committed is what a naive model says, in any order of beginning and finishing."""

from hypothesis import given
from hypothesis import strategies as st

from saga.engine.consumer.offset_tracker import OffsetTracker

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("begun"), st.integers(1, 3)),
        st.tuples(st.just("finished"), st.integers(0, 30)),
        st.tuples(st.just("commit"), st.booleans()),
    ),
    max_size=60,
)


@given(ACTIONS, st.integers(0, 1000))
def test_the_committable_offset_is_the_first_unfinished_one(actions: list[tuple[str, int]], start: int) -> None:
    prefix, begun, finished = OffsetTracker(start), list[int](), set[int]()
    committed, following = start, start
    for action, number in actions:
        match action:
            case "begun":
                offset = following + number - 1  # a log may have gaps
                following = offset + 1
                prefix.begin(offset)
                begun.append(offset)
            case "finished" if begun:
                offset = begun[number % len(begun)]
                if offset not in finished:
                    finished.add(offset)
                    prefix.finish(offset)
            case "commit":
                open_ = [offset for offset in begun if offset not in finished]
                position = min(open_) if open_ else following
                assert prefix.may_have_moved or position <= committed, "the committer asks no further then"
                assert prefix.offset_to_commit() == (position if position > committed else None)
                assert prefix.may_have_moved == (position > committed)
                if number and position > committed:  # else the broker did not answer
                    prefix.acknowledge(position)
                    committed = position
                assert len(prefix) == sum(1 for offset in begun if offset >= position)
        assert [o for o in (start - 1, *begun) if prefix.is_committed(o)] == [
            o for o in (start - 1, *begun) if o < committed
        ]


def test_removed_records_are_skipped_when_all_before_them_are_finished() -> None:
    prefix = OffsetTracker(5)
    prefix.begin(5)
    prefix.skip_to(9)
    assert prefix.offset_to_commit() is None
    prefix.finish(5)
    assert prefix.may_have_moved
    assert prefix.offset_to_commit() == 9
    prefix.acknowledge(9)
    prefix.skip_to(7)
    assert prefix.offset_to_commit() is None
    prefix.skip_to(12)
    assert prefix.may_have_moved
    assert prefix.offset_to_commit() == 12


def test_an_older_acknowledgement_moves_nothing_back() -> None:
    prefix = OffsetTracker(5)
    prefix.acknowledge(9)
    prefix.acknowledge(7)
    assert prefix.is_committed(8)
