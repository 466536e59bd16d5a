"""The picture of a saga's path: one row per event, in causal order, with a line from each cause. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from saga.ops.saga_path import PathEvent, describe_emitter

ROW_Y, FIRST_Y, DOT_X, STEP_X, LABEL_X = 34, 20, 20, 22, 24
WIDTH = 760


@dataclass(frozen=True, slots=True)
class PathLine:
    """A line from the row of a cause to the row of its effect, as data of an SVG path."""

    data: str
    mark: str


@dataclass(frozen=True, slots=True)
class PathRow:
    """The row of an event, with the positions of its dot and its label."""

    event: PathEvent
    x: int
    y: int
    label_x: int
    below: str
    """The text below the label: who emits the event, after which events, and when."""


@dataclass(frozen=True, slots=True)
class PathPicture:
    """A path with the positions of all its parts."""

    width: int
    height: int
    rows: tuple[PathRow, ...]
    lines: tuple[PathLine, ...]


def draw_path_picture(path: Sequence[PathEvent]) -> PathPicture:
    """Compute the positions of events and lines. An event is to the right of its causes.

    >>> placed = PathEvent(type="Placed", mark="done", service="client", handler="", causes=(), time=None)
    >>> paid = PathEvent(type="Paid", mark="missing", service="bank", handler="pay", causes=("Placed",), time=None)
    >>> picture = draw_path_picture([placed, paid])
    >>> [(row.x, row.y, row.below) for row in picture.rows]
    [(20, 20, 'client'), (42, 54, 'bank.pay after Placed')]
    >>> picture.lines
    (PathLine(data='M 20 20 V 54 H 42', mark='missing'),)
    """
    depth: dict[str, int] = {}
    at: dict[str, tuple[int, int]] = {}
    rows, lines = list[PathRow](), list[PathLine]()
    for number, each in enumerate(path):
        causes = [cause for cause in each.causes if cause in at]
        depth[each.type] = max((depth[cause] + 1 for cause in causes), default=0)
        x, y = DOT_X + STEP_X * depth[each.type], FIRST_Y + ROW_Y * number
        lines += [PathLine(f"M {at[cause][0]} {at[cause][1]} V {y} H {x}", each.mark) for cause in causes]
        at[each.type] = x, y
        rows.append(PathRow(each, x, y, x + LABEL_X, describe_emitter(each)))
    lines.sort(key=lambda line: line.mark == "missing")  # drawn last, so that it lies on top of the others
    return PathPicture(WIDTH, FIRST_Y + ROW_Y * len(rows), tuple(rows), tuple(lines))
