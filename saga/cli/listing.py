"""Tables and JSON of sagas, dead letters and escalations."""

from collections.abc import Sequence
from dataclasses import asdict

from saga.cli.printing import print_json, print_lines
from saga.ops.attention import AttentionItem, find_attention
from saga.ops.sagas import OPEN, ListedSaga
from saga.ops.selection import Deployment, Selection

SAGA_HEADING = ("SAGA", "KIND", "STATE", "OUTCOME", "STARTED", "CHANGED", "OPEN", "SERVICES")
SAGA_WIDTHS = (20, 16, 8, 24, 24, 24, 12)
DEAD_HEADING = ("TIME", "SERVICE", "WHAT", "SAGA", "MESSAGE", "HANDLER", "CLASS", "NOW", "WHY")
DEAD_WIDTHS = (24, 14, 12, 24, 20, 16, 8, 14)
"""Minimum widths of the columns. They are fixed because each row is printed before the next ones are known."""


async def print_attention(
    selection: Selection, deployment: Deployment, as_json: bool, *, with_ended: bool = True
) -> bool:
    """Print everything that may need a person. Return whether anything needs one now.

    Args:
        with_ended: True to include items that have ended.
    """
    found = await find_attention(selection, deployment, with_ended=with_ended)
    if as_json:
        letters = list(map(attention_to_json, found.items))
        print_json({"letters": letters, "sagas": list(map(listed_saga_to_json, found.sagas)), "more": found.more})
        return any(each.is_open for each in found.items)
    rows = [format_row(_format_attention_cells(each), DEAD_WIDTHS) for each in found.items]
    print_lines(*([format_row(DEAD_HEADING, DEAD_WIDTHS), *rows] if rows else ["nothing needs a person"]))
    if found.more:
        print_lines("and more: raise --limit to see them")
    return any(each.is_open for each in found.items)


def attention_to_json(each: AttentionItem) -> dict[str, object]:
    """Convert a dead letter, escalation or failing run, with its state, to JSON values."""
    fields = asdict(each.letter)
    blame = fields.pop("blame")
    return {**fields, "class": blame, "now": each.state}


def format_saga_cells(each: ListedSaga) -> Sequence[str]:
    """Return the cells of a saga's row, in the order of `SAGA_HEADING`."""
    still_open = " ".join(f"{sort}:{count}" for sort, count in each.open.items())
    states = [f"{s.service}:{s.state}" for s in each.statuses] + [f"{d.source.service}:damaged" for d in each.damaged]
    waits = [
        f"({r.error})" for s in each.statuses for r in s.retries if r.error and not r.attempts
    ]  # it waits without having failed
    outcome = f"{each.outcome} (failure)" if each.outcome and each.is_failure else each.outcome
    services = " ".join((*sorted(states), *waits))
    cells = each.saga, each.kind, each.state, outcome, each.started, each.changed, still_open, services
    return [cell or "-" for cell in cells]


def _format_attention_cells(each: AttentionItem) -> Sequence[str]:
    letter = each.letter
    message = letter.type or letter.whole
    about = letter.time, letter.service, letter.what, letter.saga, message, letter.handler, letter.blame
    return [*(cell or "-" for cell in about), each.state, letter.reason]


def format_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a table row as a line of text."""
    return "  ".join([*(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)), cells[-1]])


def listed_saga_to_json(each: ListedSaga) -> dict[str, object]:
    """Return a listed saga as JSON values."""
    return {
        "saga": each.saga,
        "kind": each.kind,
        "state": each.state,
        "outcome": each.outcome,
        "is_failure": each.is_failure,
        "started": each.started,
        "principals": each.principals,
        "changed": each.changed,
        "open": each.open,
        "left": each.left,
        "services": {
            s.service: {
                "state": s.state,
                "version": s.version,
                "outcome": s.outcome,
                "changed": s.changed,
                "left": s.left,
                **{sort: getattr(s, sort) for sort in OPEN},
                "retries": list(map(asdict, s.retries)),
            }
            for s in each.statuses
        }
        | {d.source.service: {"state": "damaged", "key": d.key, "what": d.damage} for d in each.damaged},
    }
