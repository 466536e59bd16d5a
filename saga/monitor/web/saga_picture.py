"""The picture of a saga: services are lanes, time runs to the right, runs are bars and messages are arrows.
Pure functions.

The time scale is linear, but long times in which nothing happens are cut out, and their length is shown at the cut.
Labels that would overlap are placed in separate rows. Everything that differs in colour also differs in form, dash or a
word. Arrows, marks and their style sheet are those of `saga.choreography.sequence_drawing`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from markupsafe import Markup

from saga.choreography.sequence_drawing import (
    LABEL_CHAR,
    LABEL_LINE,
    MarkForm,
    RowForm,
    draw_begin_mark,
    draw_end_mark,
    draw_text,
    measure_name,
)
from saga.monitor.stuck_detection import RUNS
from saga.monitor.web.site import format_duration
from saga.support.printable import count_noun, printable

RUNS_MAX: Final = 100
"""Maximum number of runs in a picture. Only the newest are shown."""
AWAITED_MAX: Final = 20
"""Maximum number of waits in a picture."""
NAME_MAX: Final = 28
"""Maximum length of a name in a picture, in characters. Longer names are cut. The table below the picture has them in
full."""
NAME_LINE_MAX: Final = NAME_MAX // 2
"""Maximum length of one line of a lane's name, in characters. Longer names are split into two lines, so that they leave
room for the picture on a narrow screen."""
WIDTH_LEAST: Final = 1140
SCALE_LEAST: Final = 320
"""Minimum width of the picture's time scale, not counting the cuts."""
CUT_WIDTH: Final = 64
CUT_FACTOR: Final = 8
"""A gap between two moments is cut out if it is this many times as long as all shorter gaps together, and longer than
`CUT_LEAST_MS`."""
CUT_LEAST_MS: Final = 100
"""Minimum length of a gap that is cut out."""
TOP: Final = 54
ROW_HEIGHT: Final = 64
BAR: Final = 12
BAR_LEAST: Final = 6
STUB: Final = 34
TICKS_PX: Final = 110
"""Minimum distance between two ticks of the time scale."""


class PictureRun(NamedTuple):
    """A transition as a picture shows it."""

    service: str
    handler: str
    outcome: str
    type: str
    source: str
    emitted: tuple[str, ...]
    end_ms: int
    """Time at which the transition was written."""
    run_ms: int | None
    """Time spent in the handler; `None` if unknown."""
    queued_ms: int | None
    attempt: int

    @property
    def start_ms(self) -> int:
        """Time at which the handler began."""
        return self.end_ms - (self.run_ms or 0)

    @property
    def received_ms(self) -> int:
        """Time at which the message was received."""
        return self.start_ms - (self.queued_ms or 0)


class PictureWait(NamedTuple):
    """Something that a saga waits for, as a picture shows it."""

    service: str
    handler: str
    types: tuple[str, ...]
    since_ms: int
    is_person: bool
    """True if an operator has to act."""


class PictureOutcome(NamedTuple):
    """The outcome of a saga."""

    result: Literal["", "success", "failure"]
    """Empty if there is no outcome yet."""
    event: str


NO_OUTCOME: Final = PictureOutcome("", "")
_BARS: Final = {"handled": "handler", "later": "handler", "compensated": "compensation"}
"""Form of the bar of a run that has finished or was suspended, by outcome. All other bars are dashed."""


# -------------------------------------------------------------------- time


class TimeCut(NamedTuple):
    """A gap in which nothing happened, and which is cut out of the picture."""

    x: float
    ms: int


class TimeScale:
    """Maps times to positions. Long gaps between neighbouring moments are cut out.

    >>> scale = TimeScale([0, 10, 20, 30, 7_200_000, 7_200_010], 0, 400)
    >>> [round(scale.find_x(ms)) for ms in (0, 30, 7_200_000, 7_200_010)]
    [0, 252, 316, 400]
    >>> [(round(cut.x), cut.ms) for cut in scale.cuts]
    [(284, 7199970)]
    """

    def __init__(self, moments: Iterable[int], left: float, right: float) -> None:
        times = sorted(set(moments))
        gaps = [after - before for before, after in pairwise(times)]
        longest_ms = find_longest_shown(gaps)
        is_cut = [gap > longest_ms for gap in gaps]
        shown_ms = sum(gap for gap, cut in zip(gaps, is_cut, strict=True) if not cut)
        width = max(SCALE_LEAST if shown_ms else 0, right - left - CUT_WIDTH * sum(is_cut))
        per_ms = width / shown_ms if shown_ms else 0.0
        self.cuts: list[TimeCut] = []
        self.points: list[tuple[int, float]] = [(times[0], left)] if times else []
        """Moments with their positions."""
        x = left
        for time, gap, cut in zip(times, gaps, is_cut, strict=False):
            if cut:
                self.cuts.append(TimeCut(x + CUT_WIDTH / 2, gap))
            x += CUT_WIDTH if cut else gap * per_ms
            self.points.append((time + gap, x))
        self.right = x
        self._xs = dict(self.points)

    def find_x(self, ms: int) -> float:
        """Return the position of one of the moments."""
        return self._xs[ms]


def find_longest_shown(gaps: Sequence[int]) -> int:
    """Return the length of the longest gap that is shown. Longer gaps are cut out. At least half of the gaps are shown.

    >>> find_longest_shown([1, 40, 3, 30, 65_000, 2_000, 5]), find_longest_shown([1, 94, 5] * 9), find_longest_shown([])
    (40, 94, 0)
    """
    in_order, sum_ms = sorted(gaps), 0
    for number, gap in enumerate(in_order):
        if number >= max(2, len(gaps) / 2) and gap > max(CUT_LEAST_MS, CUT_FACTOR * sum_ms):
            return in_order[number - 1]
        sum_ms += gap
    return max(gaps, default=0)


# -------------------------------------------------------------------- positions


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """A run with its position."""

    run: PictureRun
    left: float
    right: float
    y: float
    label: tuple[str, ...]
    label_x: float


@dataclass(frozen=True, slots=True)
class PlacedWait:
    """A wait of the saga, with its position."""

    wait: PictureWait
    left: float
    y: float
    label: tuple[str, ...]
    label_x: float


@dataclass(frozen=True, slots=True)
class SwimLane:
    """The lane of a service, or of a source outside the services, with its position."""

    name: str
    is_outside: bool
    top: float
    height: float

    @property
    def line_y(self) -> float:
        """The y coordinate of the line of the lane. The lane's first bars are on this line."""
        return self.top + (15 if self.is_outside else 16)


class SagaArrow(NamedTuple):
    """The arrow of a message, from the run that emitted it to the run that handled it."""

    x: float
    y: float
    to_x: float
    to_y: float
    form: RowForm
    mark: MarkForm


@dataclass(frozen=True, slots=True)
class SagaPicture:
    """A saga with the positions of all parts of its picture."""

    title: str
    width: float
    height: float
    left: float
    scale: TimeScale
    lanes: Sequence[SwimLane]
    runs: Sequence[PlacedRun]
    waits: Sequence[PlacedWait]
    arrows: Sequence[SagaArrow]
    outcome: PictureOutcome
    ended: PlacedRun | None
    """The run that emitted the outcome; `None` if the picture has no such run."""


def place_saga(
    runs: Sequence[PictureRun], waits: Sequence[PictureWait], outcome: PictureOutcome, now_ms: int
) -> SagaPicture:
    """Compute the positions of all parts of a saga's picture. Runs above `RUNS_MAX` and waits above `AWAITED_MAX` are
    left out."""
    shown = sorted(runs, key=lambda run: (run.end_ms, run.start_ms))[-RUNS_MAX:]
    awaited = list(waits)[:AWAITED_MAX]
    names = list(dict.fromkeys([*(run.service for run in shown), *(wait.service for wait in awaited)]))
    outside = [name for name in dict.fromkeys(run.source for run in shown) if name and name not in names][:3]
    lines = [line for name in (*outside, *names) for line in wrap_name(name)]
    left = 20 + max(map(measure_name, lines), default=0.0)
    moments = [ms for run in shown for ms in (run.received_ms, run.start_ms, run.end_ms)]
    now_ms = max(now_ms, *moments, *(wait.since_ms for wait in awaited)) if moments else now_ms
    moments += [ms for wait in awaited for ms in (wait.since_ms, now_ms)]
    scale = TimeScale(moments, left + STUB + 8, WIDTH_LEAST - 150)
    width = max(WIDTH_LEAST, scale.right + 150)
    lanes: list[SwimLane] = [SwimLane(name, True, TOP + 34 * n, 30) for n, name in enumerate(outside)]
    top, placed, placed_waits = TOP + 34.0 * len(outside), dict[int, PlacedRun](), list[PlacedWait]()
    for name in names:
        rows: list[float] = []
        for number, run in enumerate(shown):
            if run.service == name:
                placed[number] = _place_run(run, scale, rows, top, width, outcome)
        for wait in awaited:
            if wait.service == name:
                placed_waits.append(_place_wait(wait, scale, rows, top, width))
        height = ROW_HEIGHT * max(1, len(rows))
        lanes.append(SwimLane(name, False, top, height))
        top += height
    in_order = [placed[number] for number in range(len(shown))]
    first_ms, last_ms = (scale.points[0][0], scale.points[-1][0]) if scale.points else (0, 0)
    title = f"{count_noun(len(shown), 'transition')} in {count_noun(len(names), 'service')}"
    return SagaPicture(
        title=f"{title}, {format_duration(last_ms - first_ms)}",
        width=width,
        height=top + 12,
        left=left,
        scale=scale,
        lanes=lanes,
        runs=in_order,
        waits=placed_waits,
        arrows=_find_arrows(in_order, {lane.name: lane for lane in lanes}, outcome),
        outcome=outcome,
        ended=next((each for each in in_order if outcome.event in each.run.emitted), None) if outcome.event else None,
    )


def cut_name(text: str) -> str:
    """Cut a name that is too long for the picture."""
    shown = printable(text[:NAME_MAX])
    is_long = len(text) > NAME_MAX or len(shown) > NAME_MAX
    return f"{shown[: NAME_MAX - 1]}\N{HORIZONTAL ELLIPSIS}" if is_long else shown


def wrap_name(text: str) -> tuple[str, ...]:
    """Split the name of a lane into lines, after a separator if possible.

    >>> wrap_name("payment"), wrap_name("notification-gateway"), wrap_name("a-servicewithoutaseparator")
    (('payment',), ('notification-', 'gateway'), ('a-servicewitho', 'utaseparator'))
    """
    shown = cut_name(text)
    if len(shown) <= NAME_LINE_MAX:
        return (shown,)
    at = 1 + max(shown.rfind(separator, 0, NAME_LINE_MAX) for separator in "-_. ")
    if not at or len(shown) - at > NAME_LINE_MAX:
        at = NAME_LINE_MAX
    return shown[:at], shown[at:]


def format_offset(ms: int) -> str:
    """Format a time since the beginning, precisely enough for neighbouring ticks to have different labels.

    >>> [format_offset(ms) for ms in (0, 117, 67_382, 7_200_005)]
    ['+0 ms', '+117 ms', '+67.382 s', '+2.0 h']
    """
    return f"+{ms / 1000:.3f} s" if 1000 <= ms < 1_000_000 else f"+{format_duration(ms)}"


def _place_run(
    run: PictureRun, scale: TimeScale, rows: list[float], top: float, width: float, outcome: PictureOutcome
) -> PlacedRun:
    left, end = scale.find_x(run.start_ms), scale.find_x(run.end_ms)
    right = max(end, left + BAR_LEAST)
    label = _describe_run(run, outcome)
    label_x, y = _find_room(scale.find_x(run.received_ms), right, label, rows, top, width)
    return PlacedRun(run, left, right, y, label, label_x)


def _place_wait(wait: PictureWait, scale: TimeScale, rows: list[float], top: float, width: float) -> PlacedWait:
    left = scale.find_x(wait.since_ms)
    for_ = "a person" if wait.is_person else " and ".join(map(cut_name, wait.types[:3])) or "its time"
    label = (f"{cut_name(wait.handler)}: waits" if wait.handler else "waits", f"for {for_}")
    label_x, y = _find_room(left, scale.right, label, rows, top, width)
    return PlacedWait(wait, left, y, label, label_x)


def _find_room(
    left: float, right: float, label: Sequence[str], rows: list[float], top: float, width: float
) -> tuple[float, float]:
    """Return the x coordinate of a label, and the y coordinate of the first row of its lane in which the label and its
    bar have room."""
    label_width = max(measure_name(line, LABEL_CHAR) for line in label)
    label_x = max(0.0, min(left, width - label_width - 8))
    row = next((n for n, taken in enumerate(rows) if taken + 8 <= min(left, label_x)), len(rows))
    if row == len(rows):
        rows.append(0.0)
    rows[row] = max(right, label_x + label_width)
    return label_x, top + ROW_HEIGHT * row + 16


def _describe_run(run: PictureRun, outcome: PictureOutcome) -> tuple[str, ...]:
    """Return the lines of text below a bar: what ran, for which message, and the outcome if this run emitted it."""
    attempt = f", attempt {run.attempt}" if run.attempt > 1 else ""
    what = ": ".join(cut_name(word) for word in (run.handler, run.outcome) if word and word != "handled")
    took = "" if run.run_ms is None else f" {format_duration(run.run_ms)}"
    lines = [f"{what}{attempt}{took}", f"on {cut_name(run.type)}"]
    if outcome.event and outcome.event in run.emitted:
        lines.append(f"outcome: {cut_name(outcome.event)}, {outcome.result}")
    return tuple(lines)


def _find_arrows(runs: Sequence[PlacedRun], lanes: dict[str, SwimLane], outcome: PictureOutcome) -> list[SagaArrow]:
    """Return an arrow to each run from the run that emitted its message.

    That is the latest earlier run of the message's source service that emitted an event of this type.
    """
    emitted: dict[tuple[str, str], PlacedRun] = {}
    unfinished: set[tuple[str, str, str]] = set()
    arrows = list[SagaArrow]()
    for each in runs:
        run = each.run
        again = (run.service, run.handler, run.type)
        cause = emitted.get((run.source, run.type))
        for type_ in run.emitted:
            emitted[run.service, type_] = each
        is_repeated = again in unfinished
        (unfinished.discard if run.outcome in _BARS and run.outcome != "later" else unfinished.add)(again)
        if is_repeated:  # another attempt, or the next part of a suspended run: its message did not come again
            continue
        form: RowForm = "plain"
        if cause is None:
            form = "start" if run.source not in lanes or lanes[run.source].is_outside else "plain"
        elif run.type == outcome.event and outcome.result:
            form = outcome.result
        elif cause.run.outcome == "compensated":
            form = "undo"
        mark: MarkForm = (
            "compensation" if run.outcome == "compensated" else "handler" if run.outcome in RUNS else "nowhere"
        )
        lane = lanes.get(run.source)
        if cause is not None:
            begin = cause.right, cause.y
        elif lane is not None and lane.is_outside:
            begin = each.left - STUB, lane.line_y
        else:
            begin = each.left - STUB, each.y
        arrows.append(SagaArrow(*begin, each.left, each.y, form, mark))
    return arrows


# -------------------------------------------------------------------- drawing


def draw_saga(picture: SagaPicture) -> Markup:
    """Return a picture as SVG, without the names of its lanes. The page needs the style sheet of `sequence_drawing`."""
    left, width, height = round(picture.left), round(picture.width - picture.left), round(picture.height)
    label = escape(printable(picture.title))
    return Markup(
        "".join([
            f'<svg class="sequence swim" width="{width}" height="{height}" viewBox="{left} 0 {width} {height}" '
            f'role="img" aria-label="{label}">',
            *_draw_paper(picture),
            *_draw_lines(picture),
            *_draw_axis(picture),
            *(part for arrow in picture.arrows for part in _draw_arrow(arrow)),
            *(part for each in picture.waits for part in _draw_wait(each, picture.scale.right)),
            *(part for each in picture.runs for part in _draw_run(each, picture.scale)),
            *_draw_outcome(picture),
            "</svg>",
        ])
    )  # fmt: skip


def draw_names(picture: SagaPicture) -> Markup:
    """Return the names of a picture's lanes as SVG. A page keeps them in sight while the picture next to them is
    scrolled."""
    width, height = round(picture.left), round(picture.height)
    label = escape(printable(f"Lanes: {', '.join(cut_name(lane.name) for lane in picture.lanes)}"))
    return Markup(
        "".join([
            f'<svg class="sequence swim names" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'role="img" aria-label="{label}">',
            *_draw_paper(picture),
            *(part for lane in picture.lanes for part in _draw_name(lane)),
            "</svg>",
        ])
    )  # fmt: skip


def _draw_paper(picture: SagaPicture) -> Iterator[str]:
    """Yield the background, with a band behind every other lane."""
    yield f'<rect class="paper" width="{picture.width:g}" height="{picture.height:g}"/>'
    for lane in picture.lanes[::2]:
        yield f'<rect class="band" y="{lane.top:g}" width="{picture.width:g}" height="{lane.height:g}"/>'


def _draw_lines(picture: SagaPicture) -> Iterator[str]:
    for lane in picture.lanes:
        outside = " outside" if lane.is_outside else ""
        yield f'<path class="lane{outside}" d="M{picture.left:g} {lane.line_y:g}H{picture.scale.right + 8:g}"/>'


def _draw_name(lane: SwimLane) -> Iterator[str]:
    lines = wrap_name(lane.name)
    for number, line in enumerate(lines):
        yield draw_text(10, lane.line_y + 5 + 14 * (number - (len(lines) - 1) / 2), "who", line)


def _draw_axis(picture: SagaPicture) -> Iterator[str]:
    """Yield the ticks, labelled with the time since the beginning, and the cuts, labelled with their lengths."""
    scale = picture.scale
    last_x = -float(TICKS_PX)
    for ms, x in scale.points:
        if x - last_x >= TICKS_PX:
            last_x = x
            yield f'<path class="tick" d="M{x:.1f} 24V{picture.height:g}"/>'
            yield draw_text(x + 3, 20, "soft", format_offset(ms - scale.points[0][0]))
    for cut in scale.cuts:
        x, length = cut.x, format_duration(cut.ms)
        yield f'<rect class="cut" x="{x - 8:.1f}" y="34" width="16" height="{picture.height - 34:g}"/>'
        yield f'<path class="stroke" d="M{x - 7:.1f} 44l6 -10M{x + 1:.1f} 44l6 -10"/>'
        yield draw_text(x - measure_name(length, LABEL_CHAR) / 2, 33, "fn", length)


def _draw_arrow(arrow: SagaArrow) -> Iterator[str]:
    x, y, to_x, to_y, form, mark = arrow
    tip = to_x - 13
    bend = max(18.0, abs(tip - x) / 2)
    yield f'<g class="row {form}">'
    yield f'<path class="arrow" d="M{x:.1f} {y:g}C{x + bend:.1f} {y:g} {tip - bend:.1f} {to_y:g} {tip:.1f} {to_y:g}"/>'
    yield from draw_end_mark(mark, to_x + 2, to_y, STUB)
    yield from draw_begin_mark(form, x, y)
    yield "</g>"


def _draw_run(placed: PlacedRun, scale: TimeScale) -> Iterator[str]:
    run, top = placed.run, placed.y - BAR / 2
    if run.queued_ms:
        yield f'<path class="queued" d="M{scale.find_x(run.received_ms):.1f} {placed.y:g}H{placed.left:.1f}"/>'
    form = _BARS.get(run.outcome, "deadline")
    yield (
        f'<rect class="bar {form}" x="{placed.left:.1f}" y="{top:g}" width="{placed.right - placed.left:.1f}" '
        f'height="{BAR}" rx="2"/>'
    )
    if run.outcome == "dead":
        yield '<g class="row failure">'
        yield from draw_begin_mark("failure", placed.right + 8, placed.y)
        yield "</g>"
    yield from _draw_label(placed.label, placed.label_x, placed.y, "trouble" if run.outcome == "dead" else "fn")


def _draw_wait(placed: PlacedWait, right: float) -> Iterator[str]:
    x, y = placed.left, placed.y
    yield (
        f'<rect class="bar deadline awaited" x="{x:.1f}" y="{y - BAR / 2:g}" width="{max(BAR_LEAST, right - x):.1f}" '
        f'height="{BAR}" rx="2"/>'
    )
    yield f'<path class="stroke" d="M{right:.1f} {y - 8:g}v16"/>'
    yield from _draw_label(placed.label, placed.label_x, y, "trouble")


def _draw_label(lines: Sequence[str], x: float, y: float, style: str) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield draw_text(x, y + 8 + LABEL_LINE * (number + 1), style if number == 0 else "soft", line)


def _draw_outcome(picture: SagaPicture) -> Iterator[str]:
    if picture.ended is not None and picture.outcome.result:
        yield f'<g class="row {picture.outcome.result}">'
        yield from draw_begin_mark(picture.outcome.result, picture.ended.right + 8, picture.ended.y)
        yield "</g>"
