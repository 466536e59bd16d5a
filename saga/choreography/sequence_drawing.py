"""Draw a sequence picture as SVG: participants are vertical lanes, events are arrows from lane to lane. Pure functions.

An arrow is below all earlier arrows that meet one of its lanes; arrows that have no lane in common may be side by side.
Each lane is as wide as its longest label, so labels never overlap. Names are set in a font with fixed width, so that
their sizes are known. The meaning of each colour is also visible in the shape of a line or a mark, and `draw_sequence`
adds a legend of the shapes that it has used.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal, NamedTuple, TypeAlias

from saga.support.printable import printable

MarkForm: TypeAlias = Literal["handler", "compensation", "deadline", "stop", "outside", "nowhere"]
RowForm: TypeAlias = Literal["plain", "start", "success", "failure", "undo"]

MARGIN: Final = 24
TITLE_HEIGHT: Final = 64
HEAD_HEIGHT: Final = 34
SECTION_HEIGHT: Final = 40
STUB_WIDTH: Final = 44
"""Length of an arrow that ends at no lane, because the event has no consumer, or only consumers without a lane."""
LINE_Y: Final = 23
"""Distance from the top of a row to its arrow. The event's name is above the arrow; the labels are below."""
LABEL_LINE: Final = 14
BAR_WIDTH: Final = 8
BAR_STEP: Final = 20
NAME_CHAR: Final = 7.9
"""Width of a character in the name of an event or a participant. Names are 13 pixels high, in a font with fixed
width.
"""
LABEL_CHAR: Final = 6.7
TAG_CHAR: Final = 6.8
"""Largest average width of the characters in the usual proportional fonts, at a height of 11 pixels."""
ROWS_PER_HEAD: Final = 20
"""Number of rows after which the names of the lanes are repeated."""
HEAD_ROWS_LEAST: Final = 12
"""Number of rows after which the names of the lanes are repeated at the beginning of a section."""
LEGEND_LINE: Final = 24
NAME_LANES_MAX: Final = 5
"""Number of lanes after which a long arrow shows the name of its event again."""
LANE_WIDTH_LEAST: Final = 92
LEGEND_WIDTH_LEAST: Final = 640


@dataclass(frozen=True, slots=True)
class SequenceLane:
    """A participant: a vertical lane."""

    name: str
    is_outside: bool = False
    href: str = ""
    """Address to which the lane's name links; empty if there is none."""
    note: str = ""
    """Text below the name, such as a rate."""
    is_bad: bool = False
    """True if the note reports a problem."""


@dataclass(frozen=True, slots=True)
class SequenceTrouble:
    """A problem that is reported beside a mark."""

    text: str
    href: str = ""
    """Address to which the text links; empty if there is none."""


@dataclass(frozen=True, slots=True)
class SequenceMark:
    """One end of an arrow, on a lane."""

    lane: str
    form: MarkForm = "handler"
    label: tuple[str, ...] = ()
    """Lines of text beside the mark: the name of the function, then further information."""
    bar: str = ""
    """Key of the bar to which the mark belongs; empty if it belongs to none. One bar joins all marks with the same lane
    and key.
    """
    notes: tuple[str, ...] = ()
    """Lines below the label, such as a rate."""
    troubles: tuple[SequenceTrouble, ...] = ()
    """Problems, shown as lines below the notes."""


@dataclass(frozen=True, slots=True)
class SequenceRow:
    """An event: an arrow from the lanes that emit it to the lanes that take it."""

    name: str
    form: RowForm = "plain"
    tags: tuple[str, ...] = ()
    """Remarks after the name."""
    begins: tuple[SequenceMark, ...] = ()
    ends: tuple[SequenceMark, ...] = ()
    leaves: bool = False
    """True if the event also has consumers that have no lane."""
    href: str = ""
    """Address to which the name links; empty if there is none."""


@dataclass(frozen=True, slots=True)
class SequenceSection:
    """Rows under a common heading."""

    heading: str
    rows: tuple[SequenceRow, ...]


@dataclass(frozen=True, slots=True)
class SequencePicture:
    """Contents of a picture, before the positions are computed."""

    title: str
    subtitle: str
    lanes: tuple[SequenceLane, ...]
    sections: tuple[SequenceSection, ...]

    @property
    def rows(self) -> tuple[SequenceRow, ...]:
        """Return the rows of all sections."""
        return tuple(row for section in self.sections for row in section.rows)


# -------------------------------------------------------------------- order of the lanes


def sort_lanes(names: Sequence[str], rows: Sequence[Iterable[str]], ends: Mapping[str, int]) -> list[str]:
    """Return the names of lanes, ordered so that arrows are short. The result depends only on the arguments.

    Args:
        names: All lanes, in the order from which the search begins.
        rows: The lanes that each arrow joins.
        ends: Lanes that stay at one side of the others. A value below 0 means the left side, above 0 the right side.

    >>> sort_lanes(["a", "b", "c"], [["a", "c"], ["c", "b"]], {})
    ['a', 'c', 'b']
    """
    met = [name for name in dict.fromkeys(name for row in rows for name in row) if name in names]
    order = [*(name for name in met), *(name for name in names if name not in met)]
    order.sort(key=lambda name: ends.get(name, 0))
    joined = [frozenset(row) & frozenset(order) for row in rows]
    touching: dict[str, list[frozenset[str]]] = {name: [] for name in order}
    for row in joined:
        for name in row:
            touching[name].append(row)
    at = {name: number for number, name in enumerate(order)}
    for _ in order:  # each pass moves a lane by several places; few passes are needed
        is_changed = False
        for left in range(len(order) - 1):
            one, other = order[left], order[left + 1]
            if ends.get(one, 0) != ends.get(other, 0):
                continue
            concerned = {*touching[one], *touching[other]}
            before = _sum_lengths(concerned, at)
            at[one], at[other] = left + 1, left
            if _sum_lengths(concerned, at) < before:
                order[left], order[left + 1] = other, one
                is_changed = True
            else:
                at[one], at[other] = left, left + 1
        if not is_changed:
            break
    return order


def _sum_lengths(rows: Iterable[frozenset[str]], at: Mapping[str, int]) -> int:
    return sum(max(at[name] for name in row) - min(at[name] for name in row) for row in rows)


# -------------------------------------------------------------------- positions


@dataclass(frozen=True, slots=True)
class PlacedLane:
    """A lane with its position."""

    lane: SequenceLane
    left: float
    width: float
    label_x: float
    """Left end of the labels on the lane."""

    @property
    def line_x(self) -> float:
        """Return the x coordinate of the lane's vertical line. The lane's first bar is centred on it."""
        return self.left + 14


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """A row with its position."""

    row: SequenceRow
    top: float
    height: float

    @property
    def y(self) -> float:
        """Return the y coordinate of the arrow."""
        return self.top + LINE_Y


@dataclass(frozen=True, slots=True)
class PlacedBar:
    """A bar on a lane, from the first mark of a function to its last."""

    x: float
    """Centre of the bar."""
    top: float
    bottom: float
    form: MarkForm


@dataclass(frozen=True, slots=True)
class SequenceLayout:
    """A picture with the positions of its parts."""

    picture: SequencePicture
    width: float
    height: float
    bottom: float
    """Lower end of the lanes."""
    lanes: Mapping[str, PlacedLane]
    headings: tuple[tuple[str, float], ...]
    """Text and y coordinate of each section's heading."""
    heads: tuple[float, ...]
    """The y coordinates at which the names of the lanes are repeated."""
    rows: tuple[PlacedRow, ...]
    bars: Mapping[tuple[str, str], PlacedBar]
    """Bars by lane and key."""

    def mark_x(self, mark: SequenceMark) -> float:
        """Return the x coordinate of a mark on its lane."""
        bar = self.bars.get((mark.lane, mark.bar))
        return self.lanes[mark.lane].line_x if bar is None else bar.x


def measure_name(text: str, char: float = NAME_CHAR) -> float:
    """Return the width of a string. `char`: width of each character."""
    return char * len(text)


class LabelLine(NamedTuple):
    """A line of text beside a mark."""

    text: str
    style: str
    """Class of the text in the style sheet."""
    href: str = ""


def list_label_lines(mark: SequenceMark) -> list[LabelLine]:
    """Return the lines of text beside a mark."""
    return [
        *(LabelLine(text, "soft" if number else "fn") for number, text in enumerate(mark.label)),
        *(LabelLine(text, "note") for text in mark.notes),
        *(LabelLine(trouble.text, "trouble", trouble.href) for trouble in mark.troubles),
    ]


def place_sequence(picture: SequencePicture) -> SequenceLayout:
    """Compute the positions of all parts of a picture."""
    tops, headings, heads, y = _place_rows(picture)
    spans = _find_bar_spans(picture, tops)
    slots = _assign_slots(spans)
    lanes, x, widths = {}, float(MARGIN), _measure_texts(picture)
    for lane in picture.lanes:
        used = [slot for (name, _), slot in slots.items() if name == lane.name]
        label_x = x + 14 + max(used, default=0) * BAR_STEP + 14
        head = max(measure_name(lane.name), measure_name(lane.note, LABEL_CHAR)) + 28
        width = max(head, label_x - x + widths[lane.name] + 12, LANE_WIDTH_LEAST)
        lanes[lane.name] = PlacedLane(lane, x, width, label_x)
        x += width
    bars = {
        key: PlacedBar(lanes[key[0]].line_x + slots[key] * BAR_STEP, top, bottom, form)
        for key, (top, bottom, form) in spans.items()
    }
    rows = tuple(tops)
    width = max(x, LEGEND_WIDTH_LEAST) + MARGIN
    return SequenceLayout(picture, width, y + MARGIN, y, lanes, headings, heads, rows, bars)


def _place_rows(
    picture: SequencePicture,
) -> tuple[list[PlacedRow], tuple[tuple[str, float], ...], tuple[float, ...], float]:
    """Return the rows and the headings with their positions, the positions of repeated lane names, and the lower end of
    the lanes.
    """
    y = float(MARGIN + TITLE_HEIGHT + HEAD_HEIGHT + 20)
    rows, headings, heads, since = list[PlacedRow](), list[tuple[str, float]](), list[float](), 0
    for number, section in enumerate(picture.sections):
        if section.heading:
            headings.append((section.heading, y))
            y += SECTION_HEIGHT
        if number and since >= HEAD_ROWS_LEAST:
            heads.append(y)
            y, since = y + HEAD_HEIGHT, 0
        for side_by_side in _pack_rows(picture, section.rows):
            if since == ROWS_PER_HEAD:
                heads.append(y)
                y, since = y + HEAD_HEIGHT, 0
            height = max(map(_measure_height, side_by_side))
            rows += [PlacedRow(row, y, height) for row in side_by_side]
            y, since = y + height, since + 1
    return rows, tuple(headings), tuple(heads), y


def _measure_height(row: SequenceRow) -> float:
    lines: dict[str, int] = {}
    for mark in (*row.begins, *row.ends):
        lines[mark.lane] = lines.get(mark.lane, 0) + len(list_label_lines(mark))
    return LINE_Y + max([1, *lines.values()]) * LABEL_LINE + 14


def _pack_rows(picture: SequencePicture, rows: Iterable[SequenceRow]) -> list[list[SequenceRow]]:
    """Return the rows in groups that are drawn side by side. A row is below each earlier row whose arrow meets or
    passes one of its lanes.
    """
    order = {lane.name: number for number, lane in enumerate(picture.lanes)}
    packed: list[list[SequenceRow]] = []
    filled = [0] * len(order)
    for row in rows:
        at = [order[mark.lane] for mark in (*row.begins, *row.ends)]
        lanes = range(min(at), max(at) + 1)
        level = max(filled[lane] for lane in lanes)
        if level == len(packed):
            packed.append([])
        packed[level].append(row)
        for lane in lanes:
            filled[lane] = level + 1
    return packed


def _find_bar_spans(
    picture: SequencePicture, rows: Sequence[PlacedRow]
) -> dict[tuple[str, str], tuple[float, float, MarkForm]]:
    """Return the upper and the lower end of each bar, and its form."""
    spans: dict[tuple[str, str], tuple[float, float, MarkForm]] = {}
    for placed in rows:
        for mark in (*placed.row.begins, *placed.row.ends):
            if mark.bar:
                key = mark.lane, mark.bar
                top, bottom, form = spans.get(key, (placed.y - 9, placed.y + 9, "stop"))
                form = form if form != "stop" else mark.form
                spans[key] = min(top, placed.y - 9), max(bottom, placed.y + 9), form
    return spans


def _assign_slots(spans: Mapping[tuple[str, str], tuple[float, float, MarkForm]]) -> dict[tuple[str, str], int]:
    """Assign each bar a slot beside the lane's line, so that bars that overlap in time are side by side. The bar that
    begins first gets the slot nearest to the line."""
    slots: dict[tuple[str, str], int] = {}
    for key in sorted(spans, key=lambda each: (spans[each][0], spans[each][1], each)):
        top, bottom, _ = spans[key]
        taken = {
            slot
            for other, slot in slots.items()
            if other[0] == key[0] and spans[other][0] <= bottom + 6 and spans[other][1] + 6 >= top
        }
        slots[key] = next(slot for slot in range(len(taken) + 1) if slot not in taken)
    return slots


def _measure_texts(picture: SequencePicture) -> dict[str, float]:
    """Return the width of the widest text on each lane."""
    widths = dict.fromkeys((lane.name for lane in picture.lanes), 0.0)
    for row in picture.rows:
        first, *others = _list_title_lanes(picture, row)
        widths[first] = max(widths[first], _measure_title(row))
        for name in others:
            widths[name] = max(widths[name], measure_name(row.name, LABEL_CHAR))
        for mark in (*row.begins, *row.ends):
            for line in list_label_lines(mark):
                widths[mark.lane] = max(widths[mark.lane], measure_name(line.text, LABEL_CHAR))
    return widths


def _list_title_lanes(picture: SequencePicture, row: SequenceRow) -> list[str]:
    """Return the lanes in which the name of a row is written.

    The first one is the leftmost lane that emits the event. If the arrow only points left, it is the leftmost lane that
    takes the event, so that the name is above the arrow. On a long arrow the name is repeated at its ends.
    """
    order = {lane.name: number for number, lane in enumerate(picture.lanes)}
    begins = sorted({order[mark.lane] for mark in row.begins})
    ends = sorted({order[mark.lane] for mark in row.ends})
    named = [ends[0] if begins and ends and ends[-1] < begins[0] else (begins or ends)[0]]
    for at in sorted({*begins, *ends}, key=lambda at: abs(at - named[0])):
        if min(abs(at - other) for other in named) >= NAME_LANES_MAX:
            named.append(at)
    return [picture.lanes[at].name for at in named]


def _measure_title(row: SequenceRow) -> float:
    """Return the width of a row's name and tags."""
    tags = sum(10 + measure_name(tag, TAG_CHAR) for tag in row.tags)
    return measure_name(row.name) + tags + (30 if row.leaves and row.ends else 0)


# -------------------------------------------------------------------- SVG


STYLE: Final = """
.sequence { --paper: #ffffff; --band: #f4f6f9; --ink: #1b2330; --soft: #566070; --line: #c3cad4; --flow: #1f5fa8;
  --good: #14672f; --bad: #a8281e; --bar: #dbe6f4; --bar-edge: #7d9cc4;
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace; }
@media (prefers-color-scheme: dark) {
  .sequence { --paper: #12161c; --band: #191f28; --ink: #e6eaf0; --soft: #a4aebc; --line: #434d5b; --flow: #8abcf5;
    --good: #6fd096; --bad: #f5988e; --bar: #27354a; --bar-edge: #6c8fc0; }
}
.sequence text { fill: var(--ink); font-size: 11px; }
.sequence .paper { fill: var(--paper); }
.sequence .band { fill: var(--band); }
.sequence .sans, .sequence .title { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
.sequence .title { font-size: 22px; font-weight: 700; }
.sequence .subtitle { font-size: 13px; fill: var(--soft); }
.sequence .heading { font-size: 14px; font-weight: 700; }
.sequence .rule { stroke: var(--soft); stroke-width: 1; }
.sequence .lane { stroke: var(--line); stroke-width: 1.5; fill: none; }
.sequence .lane.outside { stroke-dasharray: 2 5; }
.sequence .head { fill: var(--paper); stroke: var(--soft); stroke-width: 1.5; }
.sequence .head.outside { stroke-dasharray: 4 3; }
.sequence .who, .sequence .event { font-size: 13px; font-weight: 700; }
.sequence .again { font-weight: 700; fill: var(--soft); }
.sequence .event, .sequence .tag, .sequence .fn, .sequence .soft, .sequence .note, .sequence .trouble {
  paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
.sequence .tag, .sequence .soft { fill: var(--soft); }
.sequence .note { fill: var(--flow); }
.sequence .trouble { fill: var(--bad); font-weight: 700; }
.sequence .bar { fill: var(--bar); stroke: var(--bar-edge); stroke-width: 1; }
.sequence .bar.compensation { fill: var(--paper); stroke: var(--bad); stroke-width: 1.5; }
.sequence .bar.deadline { fill: var(--paper); stroke: var(--soft); stroke-dasharray: 3 3; }
.sequence .row { color: var(--flow); }
.sequence .row.success { color: var(--good); }
.sequence .row.failure, .sequence .row.undo { color: var(--bad); }
.sequence .arrow { stroke: currentcolor; stroke-width: 1.6; fill: none; }
.sequence .success .arrow { stroke-width: 3; }
.sequence .failure .arrow { stroke-width: 2.2; stroke-dasharray: 9 4; }
.sequence .undo .arrow { stroke-dasharray: 2 4; stroke-width: 2; }
.sequence .solid { fill: currentcolor; stroke: currentcolor; stroke-width: 1.4; stroke-linejoin: round; }
.sequence .hollow { fill: var(--paper); stroke: currentcolor; stroke-width: 1.8; stroke-linejoin: round; }
.sequence .stroke { fill: none; stroke: currentcolor; stroke-width: 2; stroke-linecap: round; }
.sequence .over { fill: none; stroke: var(--paper); stroke-width: 2; stroke-linecap: round; stroke-linejoin: round; }
.sequence a text { stroke: none; text-decoration: underline; text-underline-offset: 2px; }
""".strip()
"""Style sheet of all pictures. A page that shows pictures drawn without a style sheet must include it."""


def draw_heads(picture: SequencePicture) -> str:
    """Return the names of a picture's lanes as a separate SVG, as wide as the picture. A page can keep it in sight
    while the picture is scrolled below it.
    """
    layout = place_sequence(picture)
    width, top = round(layout.width), MARGIN + TITLE_HEIGHT - 8
    height = HEAD_HEIGHT + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sequence heads" width="{width}" height="{height}" '
        f'viewBox="0 {top} {width} {height}" role="group" aria-label="Services">',
        f'<rect class="paper" y="{top}" width="{width}" height="{height}"/>',
        *(part for placed in layout.lanes.values() for part in _draw_head(placed)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def draw_sequence(picture: SequencePicture, has_style: bool = True, *, has_heads: bool = True) -> str:
    """Return a picture as SVG.

    Args:
        picture: Contents of the picture.
        has_style: False to leave out the style sheet, for a page that includes `STYLE` itself.
        has_heads: False to leave out the title and the names of the lanes, for a page that shows `draw_heads` above the
            picture.
    """
    layout = place_sequence(picture)
    legend, legend_height = _draw_legend(layout)
    width, height = round(layout.width), round(layout.height + legend_height)
    label = escape(printable(f"{picture.title}: {picture.subtitle}"))
    top = 0 if has_heads else MARGIN + TITLE_HEIGHT + HEAD_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sequence" width="{width}" height="{height - top}" '
        f'viewBox="0 {top} {width} {height - top}" role="group" aria-label="{label}">',
        f"<title>{label}</title>",
        *([f"<style>{STYLE}</style>"] if has_style else []),
        f'<rect class="paper" width="{width}" height="{height}"/>',
        *(_draw_title(picture) if has_heads else ()),
        *_draw_lanes(layout, has_heads=has_heads),
        *(_draw_bar(bar) for bar in layout.bars.values()),
        *(part for row in layout.rows for part in _draw_row(layout, row)),
        *legend,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def draw_text(x: float, y: float, style: str, text: str, href: str = "") -> str:
    """Return a label as SVG. It is a link if `href` is not empty."""
    drawn = f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(printable(text))}</text>'
    return f'<a href="{escape(href)}">{drawn}</a>' if href else drawn


def _draw_lanes(layout: SequenceLayout, *, has_heads: bool) -> Iterator[str]:
    """Yield the bands and the lines of the lanes, the repeated names of the lanes, and the headings of the sections."""
    head_y = MARGIN + TITLE_HEIGHT
    for number, placed in enumerate(layout.lanes.values()):
        if number % 2 == 0:
            height = layout.bottom - head_y + 8
            yield (
                f'<rect class="band" x="{placed.left:g}" y="{head_y - 8:g}" width="{placed.width:g}" '
                f'height="{height:g}"/>'
            )
    for placed in layout.lanes.values():
        outside = " outside" if placed.lane.is_outside else ""
        yield f'<path class="lane{outside}" d="M{placed.line_x:g} {head_y + HEAD_HEIGHT}V{layout.bottom:g}"/>'
        if has_heads:
            yield from _draw_head(placed)
        for y in layout.heads:
            yield draw_text(placed.label_x, y + 22, "again fn", placed.lane.name)
    for heading, y in layout.headings:
        yield f'<path class="rule" d="M{MARGIN} {y + 6:g}H{layout.width - MARGIN:g}"/>'
        yield draw_text(MARGIN + 28, y + 28, "heading sans event", heading)


def _draw_title(picture: SequencePicture) -> Iterator[str]:
    yield draw_text(MARGIN, MARGIN + 22, "title", picture.title)
    yield draw_text(MARGIN, MARGIN + 44, "subtitle sans", picture.subtitle)


def _draw_head(placed: PlacedLane) -> Iterator[str]:
    """Yield the box at the top of a lane, with its name."""
    head_y, lane = MARGIN + TITLE_HEIGHT, placed.lane
    outside = " outside" if lane.is_outside else ""
    yield (
        f'<rect class="head{outside}" x="{placed.left + 4:g}" y="{head_y:g}" width="{placed.width - 8:g}" '
        f'height="{HEAD_HEIGHT}" rx="{0 if outside else 6}"/>'
    )
    yield draw_text(placed.left + 14, head_y + (15 if lane.note else 22), "who", lane.name, lane.href)
    if lane.note:
        yield draw_text(placed.left + 14, head_y + 28, "trouble" if lane.is_bad else "note", lane.note)


def _draw_bar(bar: PlacedBar) -> str:
    return (
        f'<rect class="bar {bar.form}" x="{bar.x - BAR_WIDTH / 2:g}" y="{bar.top:g}" width="{BAR_WIDTH}" '
        f'height="{bar.bottom - bar.top:g}" rx="2"/>'
    )


def _draw_row(layout: SequenceLayout, placed: PlacedRow) -> Iterator[str]:
    row, y = placed.row, placed.y
    begins = [layout.mark_x(mark) for mark in row.begins]
    ends = [layout.mark_x(mark) for mark in row.ends]
    yield f'<g class="row {row.form}">'
    at = [*begins, *ends]
    if at and min(at) != max(at):
        yield f'<path class="arrow" d="M{min(at):g} {y:g}H{max(at):g}"/>'
    if begins and not ends:
        end = max(begins) + STUB_WIDTH
        yield f'<path class="arrow" d="M{max(begins):g} {y:g}H{end:g}"/>'
        yield from draw_end_mark("outside" if row.leaves else "nowhere", end + BAR_WIDTH / 2, y, STUB_WIDTH)
    for mark, x in zip(row.ends, ends, strict=True):
        nearest = min(begins, key=lambda begin: abs(begin - x), default=x - 1)
        yield from draw_end_mark(mark.form, x, y, x - nearest)
    for x in begins:
        yield from draw_begin_mark(row.form, x, y)
    yield "</g>"
    yield from _draw_labels(layout, placed)


def draw_begin_mark(form: RowForm, x: float, y: float) -> Iterator[str]:
    """Yield the mark at the beginning of an arrow. Its shape depends on the form of the event."""
    match form:
        case "start":
            yield f'<path class="solid" d="M{x - 6:g} {y - 8:g}L{x + 9:g} {y:g}L{x - 6:g} {y + 8:g}Z"/>'
        case "success":
            yield f'<circle class="solid" cx="{x:g}" cy="{y:g}" r="7"/>'
            yield f'<path class="over" d="M{x - 3.5:g} {y:g}l2.5 3l4.5 -6"/>'
        case "failure":
            yield f'<path class="solid" d="M{x - 5.5:g} {y - 7:g}h11v14h-11Z"/>'
            yield f'<path class="over" d="M{x - 3:g} {y - 3:g}l6 6m0 -6l-6 6"/>'
        case "undo":
            yield f'<path class="hollow" d="M{x:g} {y - 7:g}l7 7l-7 7l-7 -7Z"/>'
        case "plain":
            yield f'<circle class="hollow" cx="{x:g}" cy="{y:g}" r="5"/>'


def draw_end_mark(form: MarkForm, x: float, y: float, length: float) -> Iterator[str]:
    """Yield the mark at the end of an arrow. `length`: length of the arrow; negative if it points left."""
    if not length:  # the reaction takes its own event: the arrow returns to it
        yield f'<path class="arrow" d="M{x:g} {y:g}h16v8h-10"/>'
        y, length = y + 8, -1
    side = 1 if length > 0 else -1
    if form == "deadline" and abs(length) < 2 * BAR_WIDTH + 8:  # no room: draw the clock beyond the bar
        yield f'<path class="arrow" d="M{x:g} {y:g}h{side * 12}"/>'
        side = -side
    tip = x - side * BAR_WIDTH / 2
    back = tip - side * 11
    match form:
        case "deadline":
            centre = tip - side * 7
            yield f'<circle class="hollow" cx="{centre:g}" cy="{y:g}" r="7"/>'
            yield f'<path class="stroke" d="M{centre:g} {y - 4:g}V{y:g}h3.5"/>'
        case "stop":
            yield f'<path class="stroke" d="M{tip - side * 3:g} {y - 7:g}v14m{-side * 4} -14v14"/>'
        case "compensation":
            yield f'<path class="hollow" d="M{back:g} {y - 6:g}L{tip:g} {y:g}L{back:g} {y + 6:g}Z"/>'
        case "outside":
            for x_ in (back - side * 2, back + side * 4):
                yield f'<path class="stroke" d="M{x_:g} {y - 5:g}l{side * 7} 5l{-side * 7} 5"/>'
        case "nowhere":
            yield f'<path class="stroke" d="M{tip:g} {y - 5:g}v10"/>'
        case "handler":
            yield f'<path class="solid" d="M{back:g} {y - 5:g}L{tip:g} {y:g}L{back:g} {y + 5:g}Z"/>'


def _draw_labels(layout: SequenceLayout, placed: PlacedRow) -> Iterator[str]:
    """Yield the row's name above the arrow, and the labels of the marks below it."""
    row = placed.row
    first, *others = _list_title_lanes(layout.picture, row)
    for name in others:
        yield draw_text(layout.lanes[name].label_x, placed.top + 13, "again fn", row.name)
    x = layout.lanes[first].label_x
    yield draw_text(x, placed.top + 13, "event", row.name, row.href)
    x += measure_name(row.name) + 10
    for tag in row.tags:
        yield draw_text(x, placed.top + 13, "tag sans", tag)
        x += measure_name(tag, TAG_CHAR) + 10
    if row.leaves and row.ends:
        yield f'<g class="row {row.form}">'
        yield from draw_end_mark("outside", x + 18, placed.top + 9, STUB_WIDTH)
        yield "</g>"
    lines: dict[str, int] = {}
    for mark in (*row.begins, *row.ends):
        lane = layout.lanes[mark.lane]
        for text, style, href in list_label_lines(mark):
            number = lines[mark.lane] = lines.get(mark.lane, 0) + 1
            yield draw_text(lane.label_x, placed.y + 2 + number * LABEL_LINE, style, text, href)


# -------------------------------------------------------------------- legend


_ROW_LEGEND: Final[Mapping[RowForm, str]] = {
    "start": "starts a saga",
    "plain": "event, from its producer",
    "success": "outcome: success",
    "failure": "outcome: failure",
    "undo": "event of a compensation",
}
_MARK_LEGEND: Final[Mapping[MarkForm, str]] = {
    "handler": "to a handler",
    "compensation": "to a compensation",
    "deadline": "starts a timer, for a deadline",
    "stop": "stops a timer",
    "outside": "for external consumers",
    "nowhere": "without a consumer",
}


def _draw_legend(layout: SequenceLayout) -> tuple[list[str], float]:
    """Return the legend of the shapes that a picture uses, and the height of the legend."""
    rows = layout.picture.rows
    forms = {row.form for row in rows}
    marks: set[MarkForm] = {mark.form for row in rows for mark in row.ends}
    marks |= {"outside" if row.leaves else "nowhere" for row in rows if row.leaves or not row.ends}
    entries: list[tuple[str, RowForm, MarkForm | None]] = []
    for form, text in _ROW_LEGEND.items():
        if form in forms:
            entries.append((text, form, None))
    for mark, text in _MARK_LEGEND.items():
        if mark in marks:
            entries.append((text, "failure" if mark == "compensation" else "plain", mark))
    step = 62 + max((measure_name(text, TAG_CHAR) for text, _, _ in entries), default=0.0) + 20
    columns = max(1, int((layout.width - MARGIN) // step))
    parts = list[str]()
    for number, (text, form, end) in enumerate(entries):
        x, y = MARGIN + number % columns * step, layout.height + 8 + number // columns * LEGEND_LINE
        parts += [*_draw_sample(form, end, x, y), draw_text(x + 62, y + 4, "sans legend", text)]
    return parts, 8 + (len(entries) + columns - 1) // columns * LEGEND_LINE + 4


def _draw_sample(form: RowForm, mark: MarkForm | None, x: float, y: float) -> Iterator[str]:
    """Yield a sample arrow for the legend: with its end mark if `mark` is given, otherwise with the mark of its
    beginning.
    """
    yield f'<g class="row {form}">'
    yield f'<path class="arrow" d="M{x + 8:g} {y:g}H{x + 48:g}"/>'
    if mark is None:
        yield from draw_begin_mark(form, x + 10, y)
    else:
        yield from draw_end_mark(mark, x + 52, y, STUB_WIDTH)
    yield "</g>"
