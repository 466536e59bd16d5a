"""Exports of lists as files: CSV for spreadsheets, JSON for scripts. They are sent row by row, and their length is
limited.

Spreadsheets run the text of a cell as a formula if it begins with `=` or a similar character. Names and reasons come
from outside. So such cells get an apostrophe in front.
"""

import csv
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from saga.errors import BadInput, SagaError
from saga.monitor.views import PAGE_MAX, PageRequest, SagaRow, StuckSaga
from saga.monitor.web.letter_filters import parse_letter_filter
from saga.monitor.web.operator_console import LETTERS_MAX
from saga.monitor.web.search_pages import SAGA_FIELDS, parse_filter, parse_stuck_filter
from saga.monitor.web.site import Site, get_site, get_views
from saga.ops.letter_groups import LetterRow, LetterTable
from saga.support.clock import LATEST_MS, iso
from saga.support.printable import printable

EXPORT_MAX = 100_000
"""Maximum number of rows in a file."""
LETTERS_S_MAX = 30.0
"""Maximum time in seconds to wait until the dead letters are read. A file, unlike a page, does not renew itself."""
FORMULA = frozenset("=+-@\t\r\uff1d\uff0b\uff0d\uff20")
"""Characters that make a spreadsheet treat a cell as a formula if they come first, including their full-width forms."""

Row: TypeAlias = Mapping[str, object]
Rows: TypeAlias = AsyncIterator[Sequence[Row]]
"""Rows of a list, several at once."""


def make_harmless(value: object) -> str:
    """Return a value as cell text that no spreadsheet treats as a formula.

    >>> make_harmless("=1+1"), make_harmless(" @SUM(A1)"), make_harmless(-5), make_harmless("order-17")
    ("'=1+1", "' @SUM(A1)", '-5', 'order-17')
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value)
    text = printable(value)
    return f"'{text}" if not FORMULA.isdisjoint((value[:1], value.lstrip()[:1])) else text


# ---------------------------------------------------------------- lists


async def _list_sagas(site: Site, request: Request) -> Rows:
    chosen = {name: request.query_params.get(name, "") for name in SAGA_FIELDS}
    which, after = parse_filter(chosen, site.clock.now_ms()), ""
    while True:
        page = get_views(site).sagas(which, PageRequest(limit=PAGE_MAX, after=after))
        yield [_describe_saga(row) for row in page.rows]
        after = page.next
        if not after:
            return
        await site.clock.sleep(0)  # lets other requests run


def _describe_saga(row: SagaRow) -> Row:
    return {
        "saga": row.saga,
        "kind": row.kind,
        "started": _format(row.began_ms),
        "changed": _format(row.changed_ms),
        "result": row.result,
        "outcome": row.outcome,
        "transitions": row.transitions,
        "services": " ".join(row.services),
        "open_in": " ".join(row.open),
        "dead": row.dead,
    }


async def _list_stuck(site: Site, request: Request) -> Rows:
    which, now_ms, after = parse_stuck_filter(request.query_params), site.clock.now_ms(), ""
    while True:
        page = get_views(site).stuck(now_ms, which, PageRequest(limit=PAGE_MAX, after=after))
        yield [_describe_stuck(each) for each in page.sagas]
        after = page.next
        if not after:
            return
        await site.clock.sleep(0)


def _describe_stuck(each: StuckSaga) -> Row:
    return {
        "saga": each.saga,
        "why": each.why,
        "since": _format(each.since_ms),
        "allowed_ms": each.measure_ms,
        "service": each.awaited.service,
        "handler": each.awaited.handler,
        "waits_for": " ".join(each.awaited.for_),
        "ends_with": each.awaited.ends,
    }


async def _list_letters(site: Site, table: LetterTable, request: Request) -> Rows:
    rows = parse_letter_filter(request.query_params).select(table.rows)
    for begin in range(0, len(rows), PAGE_MAX):
        yield [_describe_letter(row) for row in rows[begin : begin + PAGE_MAX]]
        await site.clock.sleep(0)


def _describe_letter(row: LetterRow) -> Row:
    letter = row.item.letter
    return {
        "time": letter.time,
        "kind": letter.what,
        "state": row.item.state,
        "service": letter.service,
        "handler": letter.handler,
        "event": letter.type,
        "saga": letter.saga,
        "class": letter.blame,
        "exception": row.cause.exception,
        "reason": letter.reason,
        "remedy": letter.remedy,
        "attempts": letter.attempts,
        "message": letter.message,
        "id": letter.id,
    }


def _format(ms: int) -> str:
    return iso(max(0, min(ms, LATEST_MS)))


# ---------------------------------------------------------------- files


async def _limit(batches: Rows) -> AsyncIterator[Sequence[Row] | None]:
    """Yield at most `EXPORT_MAX` rows. If there are more, yield `None` after them."""
    left = EXPORT_MAX
    async for batch in batches:
        if batch:
            yield batch[:left]
        if len(batch) > left:
            yield None
            return
        left -= len(batch)


async def write_csv(batches: Rows, missing: Sequence[str] = ()) -> AsyncIterator[str]:
    """Write rows as CSV. If rows are left out, the last lines say so. `missing`: reasons why rows are missing."""
    is_first = True
    async for batch in _limit(batches):
        if batch is None:
            missing = [*missing, f"there are more than {EXPORT_MAX} rows: narrow the filter"]
            break
        text = io.StringIO()
        writer = csv.writer(text)
        if is_first:
            writer.writerow(batch[0])
            is_first = False
        writer.writerows([make_harmless(value) for value in row.values()] for row in batch)
        yield text.getvalue()
    for why in missing:
        text = io.StringIO()
        csv.writer(text).writerow([make_harmless(why)])
        yield text.getvalue()


async def write_json(batches: Rows, missing: Sequence[str] = ()) -> AsyncIterator[str]:
    """Write rows as one JSON object, with one row per line. Its last fields say whether rows were left out, and give
    other reasons why rows are missing."""
    more, separator = False, "\n"
    yield '{"rows": ['
    async for batch in _limit(batches):
        if batch is None:
            more = True
            break
        yield separator + ",\n".join(json.dumps(row) for row in batch)
        separator = ",\n"
    yield f'\n], "more": {json.dumps(more)}, "missing": {json.dumps([*missing])}}}\n'


async def export(request: Request) -> StreamingResponse:
    """Send a list as a file."""
    site, name, form = get_site(request), request.path_params["list"], request.path_params["form"]
    lists = {"sagas": _list_sagas, "stuck": _list_stuck} if site.views is not None else {}
    writers = {"csv": (write_csv, "text/csv"), "json": (write_json, "application/json")}
    if name not in (*lists, "dead") or form not in writers:
        raise BadInput("this list cannot be exported: there are sagas, stuck and dead, as csv and json")
    if name == "sagas" and request.query_params.get("state") == "escalated":
        raise BadInput("escalations are exported from the page of dead letters, with their kind as filter")
    missing: Sequence[str] = ()
    if name in lists:
        rows = lists[name](site, request)
    else:
        table, missing = await _read_letters(site)
        rows = _list_letters(site, table, request)
    write, kind = writers[form]
    headers = {"content-disposition": f'attachment; filename="{name}.{form}"'}
    return StreamingResponse(write(rows, missing), media_type=kind, headers=headers)


async def _read_letters(site: Site) -> tuple[LetterTable, Sequence[str]]:
    """Return what may need a person, as it is now, and the reasons why a part of it is missing.

    Raises `SagaError` if it cannot be read, or not in time: a file without rows would say that nothing needs a person.
    """
    found = await site.desk.letters(LETTERS_S_MAX)
    if found.value is None or found.is_old:
        raise SagaError("\n".join(found.troubles) or "the dead letters are being read: ask again in a minute")
    missing = [f"a part could not be read: {why}" for why in found.troubles]
    if found.value.more:
        missing.append(f"only the newest {LETTERS_MAX} were read: `saga dead list` selects among all")
    return found.value, missing


EXPORT_ROUTES = [Route("/export/{list}.{form}", export)]
