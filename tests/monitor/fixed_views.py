"""Answers of the folds as tests want them: the question is how the page shows them, not how they come about."""

from saga.monitor.views import (
    EVERYTHING,
    WHOLE_PAGE,
    ErrorClass,
    HandlerRate,
    HandlerRates,
    HotPartition,
    HotSaga,
    HotSpots,
    KnownNames,
    MinuteActivity,
    MinuteRate,
    MonitorActivity,
    PageRequest,
    SagaFilter,
    SagaPage,
    SagaRow,
    SagaWait,
    ServiceActivity,
    StuckCount,
    StuckFilter,
    StuckSaga,
    StuckSagas,
    Timeline,
    TimelineRow,
)

NEWEST_MS = 1_795_270_000_000


class FixedViews:
    """Views of sagas, each text of which is `text`. What was asked for is kept."""

    def __init__(self, text: str, count: int = 1, services: int = 1, began_ms: int = NEWEST_MS) -> None:
        self.text, self.count, self.began_ms = text, count, began_ms
        self.services = (text,) if services == 1 else tuple(f"service-{n}" for n in range(services))
        self.asked: list[tuple[SagaFilter, PageRequest]] = []
        self.asked_stuck: list[tuple[StuckFilter, PageRequest]] = []

    def row(self, number: int) -> SagaRow:
        return SagaRow(
            saga=self.text if self.count == 1 else f"{self.text}{number}",
            began_ms=self.began_ms - 1000 * number,
            changed_ms=self.began_ms,
            result=("", "success", "failure")[number % 3],
            outcome=self.text if number % 3 else "",
            transitions=number,
            kind=self.text,
            services=self.services[:4],
            open=self.services[:1] if number % 3 == 0 else (),
            dead=number % 7 == 0,
        )

    @property
    def awaited(self) -> SagaWait:
        return SagaWait(
            service=self.text,
            handler=self.text,
            for_=(self.text,),
            since_ms=self.began_ms,
            until_ms=None,
            ends=self.text,
        )

    @property
    def one_stuck(self) -> StuckSaga:
        return StuckSaga(saga=self.text, why="waiting", since_ms=self.began_ms, measure_ms=60_000, awaited=self.awaited)

    def sagas(self, which: SagaFilter, page: PageRequest) -> SagaPage:
        self.asked.append((which, page))
        first = int(page.after or 0)
        rows = tuple(self.row(number) for number in range(first, min(self.count, first + page.limit)))
        behind = first + page.limit
        return SagaPage(rows=rows, next=str(behind) if behind < self.count else "", looked=len(rows), known=self.count)

    def saga(self, saga: str, now_ms: int) -> Timeline | None:
        if not saga.startswith(self.text):
            return None
        line = TimelineRow(
            service=self.text,
            number=0,
            time_ms=self.began_ms,
            handler=self.text,
            outcome=self.text,
            type=self.text,
            source=self.text,
            emitted=(self.text,),
            steps=(self.text,),
            error=self.text,
            attempt=2,
            worker=self.text,
            queued_ms=None,
            handler_ms=3,
        )
        return Timeline(
            row=self.row(0), lines=(line,), missing=1, left_out=2, awaited=(self.awaited,), stuck=(self.one_stuck,)
        )

    def rates(self) -> HandlerRates:
        handlers = tuple(
            HandlerRate(
                service=service,
                handler=self.text,
                transitions=600,
                per_s=2.0,
                runs=590,
                retries=10,
                dead=1,
                p50_ms=1.5,
                p95_ms=20.0,
                p99_ms=2500.0,
                queued_p95_ms=4.0,
                storm=number == 0,
                slices=tuple(
                    MinuteRate(
                        minute_ms=NEWEST_MS // 60_000 * 60_000 - ago * 60_000, transitions=10 + ago, failures=ago % 4
                    )
                    for ago in range(15)
                ),
            )
            for number, service in enumerate(self.services)
        )
        return HandlerRates(minutes=15, newest_ms=NEWEST_MS, sagas=9, in_flight=4, taken=17, handlers=handlers)

    def names(self) -> KnownNames:
        return KnownNames(services=self.services, kinds=(self.text,))

    def stuck(self, now_ms: int, which: StuckFilter = EVERYTHING, page: PageRequest = WHOLE_PAGE) -> StuckSagas:
        self.asked_stuck.append((which, page))
        first = int(page.after or 0)
        behind = min(self.count, first + page.limit)
        counts = StuckCount(why="waiting", service=self.text, kind=self.text, count=self.count)
        return StuckSagas(
            sagas=(self.one_stuck,) * (behind - first),
            more=behind < self.count,
            next=str(behind) if behind < self.count else "",
            counts=(counts,) if self.count else (),
        )

    def activity(self, now_ms: int) -> MonitorActivity:
        services = tuple(
            ServiceActivity(
                service=service,
                minutes=tuple(
                    MinuteActivity(
                        minute_ms=NEWEST_MS // 60_000 * 60_000 - ago * 60_000,
                        transitions=10 + ago,
                        failures=ago % 4,
                        p95_ms=20.0 + ago,
                    )
                    for ago in range(59, -1, -1)
                ),
                per_s=2.0,
                p95_ms=20.0,
                failures=3 * (number % 2),
                storms=(self.text,) if number == 0 else (),
                parked=number % 3,
                behind_breaker=number % 2,
                stuck={"dead": 1 + number} if number % 2 == 0 else {},
                oldest=(self.one_stuck,) if number % 2 == 0 else (),
            )
            for number, service in enumerate(self.services if self.count else ())
        )
        silent = self.one_stuck if self.count else None
        return MonitorActivity(
            newest_ms=NEWEST_MS, sagas=9, in_flight=4, services=services, silent=self.count, oldest_silent=silent
        )

    def errors(self) -> tuple[ErrorClass, ...]:
        each = ErrorClass(
            service=self.text, handler=self.text, error=self.text, count=3, last_ms=self.began_ms, saga=self.text
        )
        return (each,) if self.count else ()

    def hot(self) -> HotSpots:
        if not self.count:
            return HotSpots(sagas=(), partitions=())
        return HotSpots(
            sagas=(HotSaga(saga=self.text, transitions=9),),
            partitions=(HotPartition(topic=self.text, partition=3, transitions=5, share=2.5),),
        )
