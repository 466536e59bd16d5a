"""Members that are taken for dead: by an empty seat or by silence, and never by somebody who was silent himself."""

from pathlib import Path

import pytest

from saga.broker.embedded.groups import Fellow
from saga.broker.embedded.seats import Liveness, Seat
from tests.observe.workers import SetClock

OURS, THEIRS, SILENCE_S = 1, 2, 10.0


class Group:
    """Two members, both in their seats."""

    def __init__(self, folder: Path) -> None:
        self.clock = SetClock()
        self.seats = {OURS: Seat(folder / "broker.db"), THEIRS: Seat(folder / "broker.db")}
        self.beats = {OURS: 0, THEIRS: 0}
        self.liveness = Liveness(folder, self.clock, SILENCE_S)

    def gone(self) -> list[int]:
        fellows = [Fellow(member, seat.path.name, self.beats[member]) for member, seat in self.seats.items()]
        return [fellow.id for fellow in self.liveness.gone(fellows, but=OURS)]


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


def test_an_empty_seat_tells_at_once_but_nobody_goes_by_his_own(group: Group) -> None:
    assert group.gone() == []
    for seat in group.seats.values():
        seat.leave()
    assert group.gone() == [THEIRS]


def test_silence_is_counted_from_the_last_sign_of_life(group: Group) -> None:
    assert group.gone() == []
    group.clock.at_s += SILENCE_S - 1
    group.beats[THEIRS] += 1
    assert group.gone() == []
    group.clock.at_s += SILENCE_S - 1
    assert group.gone() == []
    group.clock.at_s += 1
    assert group.gone() == [THEIRS]


def test_who_was_late_himself_begins_to_count_anew(group: Group) -> None:
    assert group.gone() == []
    assert not group.liveness.is_time_to_stir()
    group.clock.at_s += SILENCE_S
    assert group.liveness.is_time_to_stir()
    group.liveness.stirred()
    assert group.gone() == []
    group.clock.at_s += SILENCE_S / 4
    group.liveness.stirred()
    group.clock.at_s += SILENCE_S * 3 / 4
    assert group.gone() == [THEIRS]
