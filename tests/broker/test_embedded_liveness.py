"""Members that are taken for dead: by an empty seat or by silence, and never by one that was silent itself."""

from pathlib import Path

import pytest

from saga.broker.embedded.groups import Liveness, MemberLock, MemberRow, SilentMember
from tests.telemetry.workers import SetClock

OURS, THEIRS, SILENCE_S = 1, 2, 10.0


class Group:
    """Two members, both in their seats."""

    def __init__(self, folder: Path) -> None:
        self.clock = SetClock()
        self.seats = {OURS: MemberLock(folder / "broker.db"), THEIRS: MemberLock(folder / "broker.db")}
        self.liveness = Liveness(folder, self.clock, SILENCE_S)

    def silent(self) -> list[SilentMember]:
        return self.liveness.find_silent(
            [MemberRow(member, seat.path.name) for member, seat in self.seats.items()], but=OURS
        )

    def gone(self) -> list[int]:
        return [each.member.id for each in self.silent()]

    def gone_after(self, seconds: float) -> list[int]:
        """Those that are to be taken for dead at the end of this time, in which we looked often."""
        for _ in range(20):
            self.clock.at_s += seconds / 20
            gone = self.gone()
        return gone


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


def test_an_empty_seat_shows_a_dead_member_at_once_but_none_judges_by_its_own_seat(group: Group) -> None:
    assert group.gone() == []
    for seat in group.seats.values():
        seat.release()
    assert group.gone() == [THEIRS]


def test_silence_is_counted_from_the_last_sign_of_life(group: Group) -> None:
    assert group.gone_after(SILENCE_S - 1) == []
    group.seats[THEIRS].send_heartbeat()
    assert group.gone_after(SILENCE_S - 1) == []
    assert group.gone_after(2) == [THEIRS]


def test_a_member_that_was_late_itself_begins_to_count_again(group: Group) -> None:
    assert group.gone() == []
    group.clock.at_s += 2 * SILENCE_S
    assert group.gone() == []
    assert group.gone_after(SILENCE_S - 1) == []
    assert group.gone_after(1) == [THEIRS]


def test_a_member_with_a_heartbeat_since_the_check_is_not_taken_for_dead(group: Group) -> None:
    assert group.gone() == []
    assert group.gone_after(SILENCE_S) == [THEIRS]
    silent = group.silent()
    assert [fellow.id for fellow in group.liveness.filter_silent(silent)] == [THEIRS]
    group.seats[THEIRS].send_heartbeat()
    assert group.liveness.filter_silent(silent) == []


def test_a_member_without_its_seat_is_dead_despite_recent_heartbeats(group: Group) -> None:
    group.seats[THEIRS].send_heartbeat()
    assert group.gone() == []
    group.seats[THEIRS].release()
    assert [fellow.id for fellow in group.liveness.filter_silent(group.silent())] == [THEIRS]
