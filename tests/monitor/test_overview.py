"""The overview: whether everything is all right, what needs attention, and the state of each service."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from saga.broker.administration import OffsetBounds
from saga.configuration.settings import Settings
from saga.errors import ConfigurationError
from saga.messages import Partition
from saga.messaging.controls import ControlEntry, Switch
from saga.monitor.queries import Queries
from saga.monitor.read_model import ReadModel
from saga.monitor.views import (
    EVERYTHING,
    WHOLE_PAGE,
    MonitorActivity,
    PageRequest,
    ServiceActivity,
    StuckFilter,
    StuckSaga,
    StuckSagas,
    Why,
)
from saga.monitor.web import overview_page
from saga.monitor.web.operator_console import OperatorConsole, Snapshot
from saga.monitor.web.overview import ServiceFacts, SystemOverview, build_overview
from saga.monitor.web.service_watch import MINUTE_MS, POINTS_MAX, SERVICES_MAX, LagPoint, ServiceWatch
from saga.ops.letter_groups import LetterTable
from saga.ops.offsets import PartitionState, ServiceOffsets
from tests.cli.example_runs import an_order, open_shop
from tests.cli.pottery_service import Pottery
from tests.cli.test_missing_topics import Running
from tests.monitor.asking import CLOCK, WITHIN_S, browsing
from tests.monitor.fixed_views import NEWEST_MS, FixedViews
from tests.monitor.test_web_acting import shown
from tests.monitor.test_web_pages import HOSTILE, is_clean


def offsets(service: str, lag: int = 0, *members: str) -> ServiceOffsets:
    return ServiceOffsets(service, members, {Partition("orders", 0): PartitionState(OffsetBounds(0, lag), 0)})


def a_stuck(service: str, why: Why = "dead", saga: str = "order-1") -> StuckSaga:
    awaited = FixedViews(service).awaited
    return StuckSaga(saga=saga, why=why, since_ms=NEWEST_MS, measure_ms=0, awaited=awaited)


def busy(service: str, **more: object) -> ServiceActivity:
    values: dict[str, object] = {
        "minutes": (), "per_s": 1.0, "p95_ms": 5.0, "failures": 0, "storms": (), "parked": 0, "behind_breaker": 0,
        "stuck": {}, "oldest": (),
    }  # fmt: skip
    return ServiceActivity(service=service, **(values | more))  # type: ignore[arg-type]


def all_of(*services: ServiceActivity, silent: int = 0) -> MonitorActivity:
    oldest = a_stuck("order", "silent") if silent else None
    return MonitorActivity(
        newest_ms=NEWEST_MS, sagas=9, in_flight=4, services=services, silent=silent, oldest_silent=oldest
    )


def texts(overview: SystemOverview) -> list[tuple[str, str, str]]:
    return [(each.kind.severity, each.service, each.text) for group in overview.groups for each in group.problems]


RUNNING = {name: offsets(name, 3, "here:1") for name in ("order", "payment")}


def test_if_nothing_is_wrong_it_says_so() -> None:
    overview = build_overview(ServiceFacts(activity=all_of(busy("order"), busy("payment")), offsets=RUNNING))
    assert (overview.verdict, overview.sentence) == ("good", "All is well: 2 services run, and no saga is stuck")
    assert overview.groups == []
    assert [(card.service, card.run_state, card.severity) for card in overview.cards] == [
        ("order", "running", None), ("payment", "running", None)
    ]  # fmt: skip


def test_what_only_stores_and_topics_know_of_is_not_called_well() -> None:
    """Transitions are kept for a week; a dead letter or an escalation may be older, and its service may not run."""
    facts = ServiceFacts(
        activity=all_of(busy("order")), offsets=RUNNING, escalations={"ledger": 1}, blocked={"order": 2}
    )
    overview = build_overview(facts)
    assert overview.verdict == "bad"
    assert texts(overview) == [
        ("bad", "order", "dead letters block sagas: 2 sagas"),
        ("bad", "ledger", "1 escalation: something could not be undone"),
    ]
    assert {card.service: card.dead for card in overview.cards} == {"order": 2, "ledger": 0, "payment": 0}


async def test_a_verdict_needs_all_of_what_may_need_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(desk: OperatorConsole) -> Snapshot[LetterTable]:
        return Snapshot(LetterTable([]), ("the topic payment.dead cannot be read",))

    monkeypatch.setattr(OperatorConsole, "letters", read)
    found: list[ServiceFacts] = []

    def note(facts: ServiceFacts) -> SystemOverview:
        found.append(facts)
        return build_overview(facts)

    monkeypatch.setattr(overview_page, "build_overview", note)
    async with browsing(Settings(), FixedViews("payment")) as browser:
        assert "the topic payment.dead cannot be read" in (await browser.get("/overview")).text
    assert [facts.are_letters_known for facts in found] == [False]


def test_what_is_not_known_is_not_called_well() -> None:
    unknown = build_overview(ServiceFacts(activity=all_of(busy("order")), is_broker_known=False))
    assert unknown.verdict == "unknown"
    assert unknown.cards[0].run_state == "not known"
    assert build_overview(ServiceFacts(activity=all_of())).verdict == "unknown"
    dead = busy("order", stuck={"dead": 1}, oldest=(a_stuck("order"),))
    assert build_overview(ServiceFacts(activity=all_of(dead), is_broker_known=False)).verdict == "bad"
    unread = build_overview(ServiceFacts(activity=all_of(busy("order")), offsets=RUNNING, are_letters_known=False))
    assert (unread.verdict, unread.sentence) == ("unknown", "Whether something could not be undone is not known")


async def test_all_is_not_well_where_no_store_can_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(watch: ServiceWatch, troubles: list[str]) -> Sequence[ServiceOffsets]:
        return [*RUNNING.values()]

    monkeypatch.setattr(ServiceWatch, "_read_offsets", run)
    async with browsing(Settings(store="sqlite:///nowhere/{service}.db"), Queries(ReadModel())) as browser:
        end_s = CLOCK.monotonic_s() + WITHIN_S
        while "no file matches" not in (page := await browser.get("/overview")).text:
            assert CLOCK.monotonic_s() < end_s
        assert "Whether something could not be undone is not known" in page.text
        assert "All is well" not in page.text


def test_each_problem_is_found_and_what_needs_a_person_comes_first() -> None:
    payment = busy(
        "payment",
        failures=30,
        storms=("reserve",),
        behind_breaker=2,
        stuck={"dead": 3, "failing": 1, "overdue": 1, "waiting": 2},
        oldest=(a_stuck("payment"), a_stuck("payment", "waiting", "order-2")),
    )
    paused = ControlEntry(id="1", time="", who="ada", why="the bank is away", switch=Switch(kind="pause"), previous="")
    limited = ControlEntry(
        id="2", time="", who="ada", why="slow", switch=Switch(kind="limit", resource="bank", rate_per_s=1), previous=""
    )
    overview = build_overview(
        ServiceFacts(
            activity=all_of(payment, silent=1),
            offsets={
                "payment": offsets("payment", 7),
                "order": offsets("order"),
                "shipping": offsets("shipping", 500, "a"),
            },
            lags={"shipping": [LagPoint(n, 100 * n) for n in range(6)]},
            controls={"payment": [paused, limited]},
            escalations={"payment": 1},
        )
    )
    assert texts(overview) == [
        ("bad", "payment", "reserve retries more often than it finishes"),
        ("bad", "payment", "no process of it runs, and 7 messages wait"),
        ("bad", "payment", "dead letters block sagas: 3 sagas"),
        ("bad", "payment", "1 escalation: something could not be undone"),
        ("bad", "payment", "the service's own code fails: 1 saga"),
        ("bad", "payment", "work that was due has not run: 1 saga"),
        ("warn", "shipping", "it falls behind: 500 messages wait, and more each minute"),
        ("warn", "payment", "a circuit breaker is open, and 2 sagas wait behind it"),
        ("warn", "payment", "events are missing for longer than usual: 2 sagas"),
        ("warn", "", "nothing is reported of sagas that have not ended: 1 saga"),
        ("warn", "order", "no process of it runs"),
        ("warn", "payment", overview.groups[-1].problems[0].text),
    ]
    assert overview.groups[-1].problems[0].text.endswith(", by ada: the bank is away"), (
        "a limit delays nothing for ever"
    )
    assert (overview.verdict, overview.sentence) == ("bad", "6 problems need a person")
    assert [card.service for card in overview.cards] == ["payment", "shipping", "order"]
    dead = next(group for group in overview.groups if group.kind.runbook == "quarantine").problems[0]
    assert [(to.path, dict(to.query)) for to in dead.links] == [
        ("/saga", {"id": "order-1"}),
        ("/dead", {"service": "payment"}),
    ]


def test_what_only_should_be_watched_needs_no_person() -> None:
    waiting = busy("order", stuck={"waiting": 1}, oldest=(a_stuck("order", "waiting"),))
    overview = build_overview(ServiceFacts(activity=all_of(waiting), offsets=RUNNING))
    assert (overview.verdict, overview.sentence) == ("warn", "Nothing needs a person, but 1 thing should be watched")


def test_the_same_problem_of_several_services_is_one_thing() -> None:
    services = [busy(f"s{n:02}", stuck={"dead": n + 1}, oldest=(a_stuck(f"s{n:02}"),)) for n in range(25)]
    overview = build_overview(ServiceFacts(activity=all_of(*services)))
    [group] = overview.groups
    assert [each.weight for each in group.problems] == list(range(25, 0, -1))
    assert overview.sentence == "25 problems in 25 services need a person"
    assert group.everywhere == ("Dead letters", "/dead", {})
    stopped = build_overview(ServiceFacts(activity=all_of(), offsets={name: offsets(name) for name in ("a", "b")}))
    assert [each.everywhere for each in stopped.groups] == [None]


async def test_of_a_problem_of_very_many_services_the_others_are_one_link_away(folder: Path) -> None:
    services = [busy(f"s{n:02}", stuck={"dead": 1}, oldest=(a_stuck(f"s{n:02}"),)) for n in range(25)]

    class Busy(FixedViews):
        def activity(self, now_ms: int) -> MonitorActivity:
            return all_of(*services)

    async with browsing(Settings(), Busy("order-")) as browser:
        page = await browser.get("/overview")
        assert "and 20 more" in page.text
        assert "/dead" in page.links("/dead")


async def test_services_without_an_active_control_are_one_line(shop: Path) -> None:
    async with browsing(Settings()) as browser:
        page = await browser.get("/controls")
        assert "No control is active In 5 services, with all their changes: inventory" in page.text
        assert len(page.links("/audit?service=")) == 5


RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"


def test_each_problem_names_a_runbook_that_exists() -> None:
    from saga.monitor.web import overview as module

    kinds = [each for each in vars(module).values() if isinstance(each, module.ProblemKind)]
    kinds += module.STUCK.values()
    named = {kind.runbook for kind in kinds if kind.runbook}
    assert len(named) >= 7
    assert [name for name in named if not (RUNBOOKS / f"{name}.md").exists()] == []


# -------------------------------------------------------------------- the lag of the last hour


def test_one_point_a_minute_is_kept_for_an_hour() -> None:
    watch = ServiceWatch(Settings(), CLOCK)
    for minute in range(100):
        watch.note([offsets("payment", 1)], minute * MINUTE_MS)
        watch.note([offsets("payment", minute)], minute * MINUTE_MS + 30_000)
    lags = watch.list_lags("payment")
    assert len(lags) == POINTS_MAX
    assert lags[0] == LagPoint(40 * MINUTE_MS, 40)
    assert lags[-1] == LagPoint(99 * MINUTE_MS, 99), "the last one of a minute counts"
    watch.note([offsets("order")], 200 * MINUTE_MS)
    assert watch.list_lags("payment") == (), "what is older than an hour is dropped with its service"
    watch.note([offsets(f"s{n}") for n in range(2 * SERVICES_MAX)], 201 * MINUTE_MS)
    assert watch.list_lags(f"s{SERVICES_MAX - 1}")
    assert watch.list_lags(f"s{SERVICES_MAX}") == ()


# -------------------------------------------------------------------- the page


async def test_the_page_shows_which_services_run_and_how_far_they_are(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def two_services(watch: ServiceWatch, troubles: list[str]) -> Sequence[ServiceOffsets]:
        return [offsets("payment", 1234), offsets("order", 5, "a", "b")]

    monkeypatch.setattr(ServiceWatch, "_read_offsets", two_services)
    async with browsing(Settings(), FixedViews("order-", services=3)) as browser:
        first = await browser.client.get("/")
        assert (first.status_code, first.headers["location"]) == (303, "/overview")
        page = await browser.get("/overview")
        is_clean(page)
        assert "need a person." in page.text
        assert "2 running" in page.text
        assert "1,234" in page.text
        assert "no process of it runs, and 1,234 messages wait" in page.text
        assert "docs/runbooks/nobody-works.md" in page.text
        assert page.links("/dead?service=service-0")
        assert page.links("/saga?id=order-")
        plots = [attrs["aria-label"] or "" for _, attrs in page.elements if attrs.get("class") == "plot"]
        assert "lag in messages, the last 60 minutes: at most 1,234, now 1,234" in plots
        assert len(plots) == 2 * 5 + 2, "three of each service that is known in both ways"
    linked = Settings(docs="https://docs.example/{page}/")
    async with browsing(linked, FixedViews("order-", services=3)) as browser:
        assert (await browser.get("/overview")).links("https://docs.example/runbooks/nobody-works/")
    for wrong in ("javascript:{page}", "https://docs.example/"):
        with pytest.raises(ConfigurationError, match="docs"):
            Settings.from_environment(docs=wrong)


@pytest.mark.parametrize("pottery_on", ["embedded"], indirect=True)  # the Kafka of all tests has hundreds of services
async def test_a_service_that_runs_and_one_that_stopped_are_told_apart_by_the_broker(
    dead: Running, pottery_on: Pottery
) -> None:
    async with browsing(Settings.from_environment(), FixedViews("order-", count=0)) as browser:
        await shown(browser, "/overview", f"{pottery_on.service} 1 running")
    dead.terminate()
    await asyncio.to_thread(dead.wait, 60)
    async with browsing(Settings.from_environment(), FixedViews("order-", count=0)) as browser:
        await shown(browser, "/overview", f"{pottery_on.service} not running")


async def test_that_the_broker_cannot_be_asked_is_shown(folder: Path) -> None:
    async with open_shop(folder / ".saga") as shop:
        await shop.settle(an_order("order-1"))
    async with browsing(Settings(), FixedViews("order-", count=0)) as browser:
        page = await browser.get("/overview")
        assert "whether the services run is not known: there is no file" in page.text
        assert "Whether the services run is not known." in page.text


async def test_hostile_texts_are_escaped_on_the_overview(folder: Path) -> None:
    views = FixedViews("")
    async with browsing(Settings(), views) as browser:
        for text in HOSTILE:
            views.text, views.services = text, (text,)
            is_clean(await browser.get("/overview"))


class CountedViews(FixedViews):
    """Views that count what is asked of them."""

    asked_for = 0

    def activity(self, now_ms: int) -> MonitorActivity:
        self.asked_for += 1
        return super().activity(now_ms)

    def stuck(self, now_ms: int, which: StuckFilter = EVERYTHING, page: PageRequest = WHOLE_PAGE) -> StuckSagas:
        raise AssertionError("the list of stuck sagas is not needed")


async def test_its_size_depends_on_the_services_and_kinds_of_problems_only(folder: Path) -> None:
    views = CountedViews("order-", count=10_000, services=25)
    async with browsing(Settings(), views) as browser:
        page = await browser.get("/overview")
        assert views.asked_for == 1
        assert len([tag for tag, _ in page.elements if tag == "tr"]) == 26
        problems = [attrs for _, attrs in page.elements if attrs.get("class") == "problem"]
        assert 0 < len(problems) <= 12
        assert len(page.links("/dead?service=")) <= 25 + overview_page.EACH_MAX
        views.services = tuple(f"service-{n}" for n in range(300))
        many = await browser.get("/overview")
        assert len([tag for tag, _ in many.elements if tag == "tr"]) == 1 + overview_page.SERVICES_MAX
        assert "200 services without worse problems are not shown." in many.text
