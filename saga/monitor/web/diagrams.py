"""Graph of a choreography: one column per service, one row per event, with a line from its producers to its consumers.
Pure.

Rows are in causal order: an event is below at least one of its causes. Each event has its own row, so labels never
overlap, and a graph of many services is as readable as a small one, only larger.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from saga.choreography.overview import Overview
from saga.monitor.views import MinuteRate

CLIENTS, OTHERS = "clients", "external consumers"
"""Names of the columns for participants that are not services: external producers and external consumers."""
LABELS_X, COLUMN_X, ROW_Y, HEAD_Y = 210, 120, 28, 56


@dataclass(frozen=True, slots=True)
class EventFlow:
    """An event, with its producers and consumers."""

    event: str
    outcome: str | None
    """`success` or `failure` if the event ends a saga, else `None`."""
    producers: tuple[str, ...]
    consumers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServiceColumn:
    """The column of a service or of a group of external participants, with the position of its centre."""

    name: str
    x: int
    is_outside: bool


@dataclass(frozen=True, slots=True)
class EventRow:
    """The row of an event, with its vertical position and the positions of its marks, one for each producer and
    consumer.
    """

    flow: EventFlow
    y: int
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    left: int
    """Left end of the horizontal line that joins the marks."""
    right: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph with the positions of all its parts."""

    width: int
    height: int
    columns: tuple[ServiceColumn, ...]
    rows: tuple[EventRow, ...]


def list_events(overview: Overview) -> list[EventFlow]:
    """Return the events that have a producer or a consumer, in causal order."""
    found = {}
    for contract in overview.contracts.values():
        producers = [each.service for each in overview.emitters(contract.name)]
        consumers = [each.service for each in overview.consumers(contract.name) if each.from_log]
        consumers += [each.service for each in overview.compensated_on(contract.name)]
        if producers or consumers:
            found[contract.name] = EventFlow(
                contract.name,
                contract.outcome,
                ((CLIENTS,) if contract.produced_externally else ()) + tuple(dict.fromkeys(producers)),
                tuple(dict.fromkeys(consumers)) + ((OTHERS,) if contract.consumed_externally else ()),
            )
    return [found[name] for name in _sort_by_cause(overview, list(found))]


def _sort_by_cause(overview: Overview, names: Sequence[str]) -> list[str]:
    """Return the names of the events in causal order: each is after the events that the handler waits for that emits
    it. If several handlers emit it, one of them is enough.
    """
    never = len(names) + 1
    ranks = {name: 0 if overview.contracts[name].produced_externally else never for name in names}
    reactions = [each for manifest in overview.manifests.values() for each in manifest.reactions if each.takes]
    for _ in names:  # the length of the longest possible chain of causes
        before = dict(ranks)
        for each in reactions:
            parts = [min((ranks.get(name, never) for name in part), default=never) for part in each.takes]
            for name in each.emits:
                if name in ranks:
                    ranks[name] = min(ranks[name], 1 + max(parts))
        if ranks == before:
            break
    return sorted(names, key=lambda name: ranks[name])


def draw_graph(services: Sequence[str], events: Sequence[EventFlow]) -> Drawing:
    """Compute the positions of services and events.

    >>> picture = draw_graph(["payment", "order"], [EventFlow("OrderPlaced", None, ("clients",), ("order", "payment"))])
    >>> [(column.name, column.x) for column in picture.columns]
    [('clients', 270), ('order', 390), ('payment', 510)]
    >>> [(row.y, row.begins, row.ends, row.left, row.right) for row in picture.rows]
    [(70, (270,), (390, 510), 270, 510)]
    """
    met = dict.fromkeys(name for flow in events for name in (*flow.producers, *flow.consumers))
    inside = [name for name in dict.fromkeys([*met, *services]) if name not in (CLIENTS, OTHERS)]
    names = [*([CLIENTS] if CLIENTS in met else []), *inside, *([OTHERS] if OTHERS in met else [])]
    x = {name: LABELS_X + COLUMN_X // 2 + at * COLUMN_X for at, name in enumerate(names)}
    rows = []
    for at, flow in enumerate(events):
        begins, ends = tuple(x[name] for name in flow.producers), tuple(x[name] for name in flow.consumers)
        both = [*begins, *ends]
        rows.append(EventRow(flow, HEAD_Y + ROW_Y // 2 + at * ROW_Y, begins, ends, min(both), max(both)))
    columns = tuple(ServiceColumn(name, x[name], name in (CLIENTS, OTHERS)) for name in names)
    return Drawing(LABELS_X + len(names) * COLUMN_X, HEAD_Y + len(events) * ROW_Y + ROW_Y // 2, columns, tuple(rows))


# -------------------------------------------------------------------- plots


WIDTH, HEIGHT = 120, 24
MINUTE_MS = 60_000


def draw_bars(slices: Sequence[MinuteRate], newest_ms: int, minutes: int) -> Markup:
    """Return a plot of transitions per minute, oldest on the left. The lower part of a minute's bar shows failures.

    It contains only numbers, so nothing in it needs escaping.

    >>> print(draw_bars([MinuteRate(minute_ms=60_000, transitions=4, failures=1)], 60_001, 2))
    <svg class="plot" width="120" height="24" viewBox="0 0 120 24" role="img" aria-label="transitions a minute, \
the last 2 minutes: at most 4, now 4, failures 1"><rect class="bar" x="60.0" y="0.0" width="59.0" height="24.0"/>\
<rect class="bar bad" x="60.0" y="18.0" width="59.0" height="6.0"/></svg>
    """
    last = newest_ms - newest_ms % MINUTE_MS
    known = {(last - each.minute_ms) // MINUTE_MS: each for each in slices}
    shown = [known[ago] for ago in range(minutes) if ago in known]
    most = max((each.transitions for each in shown), default=0)
    width = WIDTH / max(1, minutes)
    parts = []
    for ago in range(minutes - 1, -1, -1):
        each = known.get(ago)
        if each is None or not each.transitions:
            continue
        x = (minutes - 1 - ago) * width
        for kind, count in (("bar", each.transitions), ("bar bad", min(each.failures, each.transitions))):
            height = HEIGHT * count / most
            if count:
                parts.append(
                    f'<rect class="{kind}" x="{x:.1f}" y="{HEIGHT - height:.1f}" width="{max(0.5, width - 1):.1f}" '
                    f'height="{height:.1f}"/>'
                )
    now = known[0].transitions if 0 in known else 0
    failures = sum(each.failures for each in shown)
    label = f"transitions a minute, the last {minutes} minutes: at most {most}, now {now}, failures {failures}"
    head = f'<svg class="plot" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    return Markup(f'{head} aria-label="{label}">{"".join(parts)}</svg>')
