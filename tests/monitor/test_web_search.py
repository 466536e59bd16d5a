"""Search, stuck sagas with counts and filters, and lists as files."""

import csv
import io
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from saga.configuration.settings import Settings
from saga.monitor import queries
from saga.monitor.queries import Queries
from saga.monitor.read_model import ReadModel
from saga.monitor.saga_index import TimeIndex, TrackedSaga
from saga.monitor.views import PageRequest, SagaFilter, StuckFilter
from saga.monitor.web import exports, search_pages
from saga.monitor.web.exports import make_harmless, write_csv, write_json
from saga.monitor.web.operator_console import PATIENCE_S, OperatorConsole
from saga.ops.attention import Attention
from saga.ops.letter_groups import LetterTable
from saga.support.clock import iso
from tests.monitor.asking import CLOCK, browsing
from tests.monitor.fixed_views import NEWEST_MS, FixedViews
from tests.monitor.test_web_bulk import show
from tests.monitor.test_web_pages import HOSTILE, is_clean
from tests.monitor.transition_events import BEGIN_MS, MINUTE, Monitor, S, make_transition
from tests.ops.test_letter_groups import make_item


def fill(sagas: int = 60) -> Monitor:
    """Sagas of two kinds: each third is dead in one of three services, the others wait."""
    monitor = Monitor()
    for n in range(sagas):
        type_ = "OrderPlaced" if n % 2 else "RefundAsked"
        dead = (
            {"outcome": "dead", "open_": True} if n % 3 == 0 else {"awaits": (("reserve", ("Paid",)),), "open_": True}
        )
        monitor.take(make_transition(f"s-{n % 4}", 0, n * S, saga=f"saga-{n:03}", type_=type_, **dead))  # type: ignore[arg-type]
    return monitor


NOW_MS = BEGIN_MS + 60 * MINUTE


def test_stuck_sagas_are_counted_by_reason_service_and_kind_and_all_are_reached() -> None:
    answers = fill().answers
    whole = answers.stuck(NOW_MS)
    assert sum(each.count for each in whole.counts) == len(whole.sagas) == 60
    assert {each.why for each in whole.counts} == {"dead", "waiting"}
    which = StuckFilter(why="dead", service="s-0", kind="RefundAsked")
    some = answers.stuck(NOW_MS, which)
    assert [each.saga for each in some.sagas] == ["saga-000", "saga-012", "saga-024", "saga-036", "saga-048"]
    assert some.counts == whole.counts, "a filter can show what others would find"
    counted = [
        each.count for each in whole.counts if (each.why, each.service, each.kind) == ("dead", "s-0", "RefundAsked")
    ]
    assert counted == [5]


@pytest.mark.parametrize("limit", [1, 7, 60])
def test_pages_of_stuck_sagas_continue_where_the_one_before_ended(limit: int) -> None:
    monitor = fill()
    for n in range(5):  # several that are stuck since the same time
        monitor.take(make_transition("s-9", 0, 7 * S, "dead", saga=f"same-{n}", open_=True))
    answers = monitor.answers
    whole = [each.saga for each in answers.stuck(NOW_MS).sagas]
    assert len(whole) == len(set(whole)) == 65
    found, after = list[str](), ""
    while True:
        page = answers.stuck(NOW_MS, page=PageRequest(limit=limit, after=after))
        assert len(page.sagas) <= limit
        found += [each.saga for each in page.sagas]
        after = page.next
        assert page.more == bool(after)
        if not after:
            break
    assert found == whole
    assert [each.saga for each in answers.stuck(NOW_MS, page=PageRequest(after="x:y")).sagas] == whole[:50]


def test_the_age_counts_from_the_time_at_which_a_saga_became_stuck() -> None:
    answers = fill(60).answers
    dead = [each for each in answers.stuck(NOW_MS).sagas if each.why == "dead"]
    age_ms = NOW_MS - dead[9].since_ms
    found = answers.stuck(NOW_MS, StuckFilter(why="dead", age_ms=age_ms))
    assert [each.saga for each in found.sagas] == [each.saga for each in dead[:10]]
    assert sum(each.count for each in found.counts if each.why == "dead") == 10


def test_a_page_of_stuck_sagas_looks_at_no_more_than_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, looked = fill(3000), list[object]()
    build = Queries._build_stuck

    def counting(self: Queries, known: TrackedSaga, *more: object) -> object:
        looked.append(known)
        return build(self, known, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Queries, "_build_stuck", counting)
    found = monitor.answers.stuck(NOW_MS, page=PageRequest(limit=10))
    assert (len(found.sagas), len(looked)) == (10, 10)
    assert sum(each.count for each in found.counts) == 3000


def test_sagas_are_found_by_kind_and_by_the_time_of_their_start() -> None:
    answers = fill().answers

    def find(**fields: object) -> list[str]:
        return sorted(row.saga for row in answers.sagas(SagaFilter(**fields), PageRequest(limit=100)).rows)  # type: ignore[arg-type]

    assert len(find(kind="OrderPlaced")) == 30
    assert find(kind="Other") == []
    assert find(since_ms=BEGIN_MS + 3 * S, before_ms=BEGIN_MS + 6 * S) == ["saga-003", "saga-004", "saga-005"]
    assert find(since_ms=BEGIN_MS + 57 * S, kind="RefundAsked") == ["saga-058"]
    names = answers.names()
    assert names.services == ("s-0", "s-1", "s-2", "s-3")
    assert names.kinds == ("OrderPlaced", "RefundAsked")


def test_a_search_from_a_time_on_does_not_look_at_sagas_that_changed_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, buckets = fill(3000).answers, list[object]()
    scan = TimeIndex.scan

    def counting(self: TimeIndex[TrackedSaga], *args: object, **more: object) -> object:
        for part in scan(self, *args, **more):  # type: ignore[arg-type]
            buckets.append(part)
            yield part

    monkeypatch.setattr(TimeIndex, "scan", counting)
    found = answers.sagas(SagaFilter(since_ms=BEGIN_MS + 2990 * S), PageRequest(limit=50))
    assert len(found.rows) == 10
    assert len(buckets) <= 5
    assert not found.next


@pytest.mark.parametrize("look_max", [queries.LOOK_MAX, 50])
def test_all_dead_and_stuck_sagas_are_found_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch, look_max: int
) -> None:
    monkeypatch.setattr(queries, "PAGE_MAX", 5)
    monkeypatch.setattr(queries, "LOOK_MAX", look_max)
    answers = fill(300).answers

    def find(**fields: object) -> list[str]:
        found, after = list[str](), ""
        while True:
            page = answers.sagas(SagaFilter(**fields), PageRequest(limit=100, after=after))  # type: ignore[arg-type]
            found += [row.saga for row in page.rows]
            if not (after := page.next):
                return found

    newest_first = [f"saga-{n:03}" for n in reversed(range(300))]
    assert find(stuck_ms=NOW_MS) == newest_first
    dead = [name for n, name in zip(reversed(range(300)), newest_first, strict=True) if n % 3 == 0]
    assert find(dead=True) == dead
    assert find(dead=True, stuck_ms=NOW_MS, outcome="none") == dead
    assert find(dead=True, text="297") == ["saga-297"]
    assert find(stuck_ms=NOW_MS, kind="OrderPlaced", since_ms=BEGIN_MS + 298 * S) == ["saga-299"]
    assert find(stuck_ms=BEGIN_MS + 6 * S) == ["saga-006", "saga-003", "saga-000"], "the others may still wait"


def test_kinds_are_forgotten_with_their_last_saga() -> None:
    monitor = Monitor(ReadModel(sagas_max=2))
    for n in range(4):
        monitor.take(make_transition("s", 0, n * S, saga=f"saga-{n}", type_=f"Type{n}", result="success"))
    assert monitor.answers.names().kinds == ("Type2", "Type3")
    earlier = make_transition("s", 0, -S, saga="saga-3", type_="Earlier")
    monitor.take(make_transition("other", 0, -S, saga="saga-3", type_="Earlier"), earlier)
    assert monitor.answers.names().kinds == ("Earlier", "Type2")


async def test_the_search_and_the_page_of_stuck_sagas_pass_their_filters_on(folder: Path) -> None:
    views = FixedViews("order-", count=3)
    async with browsing(Settings(), views) as browser:
        await browser.get("/sagas?kind=OrderPlaced&since=1970-01-01T00:01&until=1970-01-01T00:02:30Z&age=7d")
        which = views.asked[-1][0]
        assert (which.kind, which.since_ms, which.before_ms) == ("OrderPlaced", 60_000, 150_000)
        await browser.get("/sagas?since=yesterday&until=9")
        assert (views.asked[-1][0].since_ms, views.asked[-1][0].before_ms) == (None, None)
        page = await browser.get("/stuck?why=waiting&service=order-&kind=order-&age=1h")
        assert views.asked_stuck[-1][0] == StuckFilter(why="waiting", service="order-", kind="order-", age_ms=3_600_000)
        assert "3 stuck." in page.text.replace(" .", ".")
        assert "order- (3)" in page.text
        none = await browser.get("/stuck?service=other")
        assert "other (0)" in none.text
        answer = await browser.client.get("/api/stuck?why=dead&limit=2")
        assert (len(answer.json()["sagas"]), answer.json()["next"]) == (2, "2")
        assert (await browser.client.get("/api/sagas?kind=x")).status_code == 200
        assert views.asked[-1][0].kind == "x"
        for path in ("/sagas?renew=off", "/stuck?renew=off"):
            paused = await browser.get(path)
            assert "Paused." in paused.text
            assert not any("data-live" in attrs for _, attrs in paused.elements)


async def test_all_escalated_sagas_are_listed_page_by_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, *(make_item(n, "E", "goes on", what="escalation") for n in range(129, -1, -1)))
    monitor = Monitor().take(
        *(make_transition("s", 0, n * S, saga=f"s-{n}", type_="Odd" if n % 2 else "Even") for n in range(120))
    )
    async with browsing(Settings(), monitor.answers) as browser:

        async def find(fields: str) -> list[int]:
            found, path = list[str](), f"/sagas?state=escalated{fields}"
            while path:
                page = await browser.get(path)
                found += [link.rpartition("-")[2] for link in page.links("/saga?id=")]
                path = next((link for link in page.links("/sagas?") if "after=" in link and "renew" not in link), "")
            return sorted(map(int, found))

        assert await find("") == [*range(130)]
        of_kind = await find("&kind=Odd")
        assert of_kind == [n for n in range(130) if n % 2 or n >= 120], "of the others the kind is not known"
        monkeypatch.setattr(search_pages, "ESCALATED_LOOK_MAX", 20)
        assert await find("&text=s-12") == [12, *range(120, 130)]
        page = await browser.get("/sagas?state=escalated&text=s-0")
        assert "No saga matches these filters among the 20 examined ones" in page.text
        page = await browser.get("/sagas?state=escalated&text=s-129")
        assert "No transition of these sagas is known here" in page.text
        assert "No saga matches" not in page.text


@pytest.mark.parametrize("form", ["csv", "json"])
async def test_each_list_is_exported_whole_with_its_filter(
    folder: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    show(monkeypatch, *(make_item(n, f"E: {n}", service="a" if n % 2 else "b") for n in range(2500)))
    views = FixedViews("order-", count=2500)
    async with browsing(Settings(), views) as browser:

        async def rows(path: str) -> list[dict[str, str]]:
            answer = await browser.client.get(path)
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-disposition"].startswith("attachment; filename=")
            if form == "csv":
                return [*csv.DictReader(io.StringIO(answer.text))]
            body = json.loads(answer.text)
            assert body["more"] is False
            return list(body["rows"])

        found = await rows(f"/export/sagas.{form}?text=order&kind=x")
        assert [each["saga"] for each in found] == [f"order-{n}" for n in range(2500)]
        assert views.asked[-1][0].kind == "x"
        found = await rows(f"/export/stuck.{form}?why=waiting")
        assert len(found) == 2500
        assert found[0]["since"] == iso(NEWEST_MS)
        assert views.asked_stuck[-1][0].why == "waiting"
        found = await rows(f"/export/dead.{form}?service=a")
        assert len(found) == 1250
        assert {each["service"] for each in found} == {"a"}
        assert [*found[0]][:4] == ["time", "kind", "state", "service"]
        empty = await browser.client.get(f"/export/dead.{form}?service=zzz")
        assert empty.status_code == 200
        for path in ("/export/rates.csv", "/export/dead.xml", "/export/sagas.csv?state=escalated"):
            assert (await browser.client.get(path)).status_code == 400, path
    async with browsing(Settings()) as browser:
        assert (await browser.client.get(f"/export/sagas.{form}")).status_code == 400, "nothing is folded here"


async def test_a_file_of_dead_letters_waits_for_what_is_read_and_is_refused_if_it_cannot_be(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = OperatorConsole._read_letters

    async def slowly(desk: OperatorConsole, troubles: list[str]) -> LetterTable:
        await CLOCK.sleep(3 * PATIENCE_S)
        return await read(desk, troubles)

    monkeypatch.setattr(OperatorConsole, "_read_letters", slowly)
    async with browsing(Settings()) as browser:
        first = await browser.client.get("/export/dead.json")
        assert [row["saga"] for row in json.loads(first.text)["rows"]] == ["order-3"]
    async with browsing(Settings(store="sqlite:///nowhere/{service}.db")) as browser:
        for path in ("/export/dead.csv", "/export/dead.json", "/export/dead.json"):
            refused = await browser.client.get(path)
            assert refused.status_code == 503, "a file without rows would say that nothing needs a person"
            assert "nowhere" in refused.text
    monkeypatch.setattr(exports, "LETTERS_S_MAX", PATIENCE_S)
    async with browsing(Settings()) as browser:
        late = await browser.client.get("/export/dead.csv")
        assert (late.status_code, "ask again in a minute" in late.text) == (503, True)


async def test_a_file_of_dead_letters_says_what_it_does_not_contain(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(desk: OperatorConsole, troubles: list[str]) -> LetterTable:
        troubles += ["=1", "topic b.dead, c.dead is hidden"]
        return LetterTable.of(Attention([make_item(1, "E")], [], more=True))

    monkeypatch.setattr(OperatorConsole, "_read_letters", read)
    missing = [
        "a part could not be read: =1",
        "a part could not be read: topic b.dead, c.dead is hidden",
        "only the newest 100000 were read: `saga dead list` selects among all",
    ]
    async with browsing(Settings()) as browser:
        found = json.loads((await browser.client.get("/export/dead.json")).text)
        assert (len(found["rows"]), found["missing"]) == (1, missing)
        for path, count in (("/export/dead.csv", 1), ("/export/dead.csv?service=zzz", 0)):
            lines = [*csv.reader(io.StringIO((await browser.client.get(path)).text))]
            assert lines[-3:] == [[why] for why in missing]
            assert len(lines[:-3]) == 2 * count, "a head and its rows"


async def test_no_cell_of_a_file_is_a_formula(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = ("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\r=1", "\n=1", "\uff1d1", '"=1"', *HOSTILE)
    show(monkeypatch, *(make_item(n, text, handler=text, service=text) for n, text in enumerate(hostile)))
    async with browsing(Settings(), FixedViews("=1+1")) as browser:
        for name in ("dead", "sagas", "stuck"):
            answer = await browser.client.get(f"/export/{name}.csv")
            for row in csv.reader(io.StringIO(answer.text)):
                for cell in row:
                    assert cell.lstrip()[:1] not in exports.FORMULA or cell == "", (name, cell)
                    assert cell.isprintable(), cell
        page = await browser.get("/dead")
        is_clean(page)
        assert page.links("/export/dead.csv")


def test_numbers_and_nothing_are_left_as_they_are() -> None:
    assert [make_harmless(value) for value in (-5, 1.5, None, True, "", "a=b")] == ["-5", "1.5", "", "True", "", "a=b"]


async def test_a_file_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "EXPORT_MAX", 25)
    taken = list[int]()

    async def endless() -> AsyncIterator[Sequence[dict[str, object]]]:
        for begin in range(0, 10_000, 10):
            taken.append(begin)
            yield [{"n": n} for n in range(begin, begin + 10)]

    lines = "".join([part async for part in write_csv(endless())]).splitlines()
    assert lines == ["n", *map(str, range(25)), "there are more than 25 rows: narrow the filter"]
    assert len(taken) == 3, "no more is read than is written"
    body = json.loads("".join([part async for part in write_json(endless())]))
    assert (len(body["rows"]), body["more"]) == (25, True)
