"""Standstills of the log, each told once when it begins, and once when it is over."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from saga.messages import Standstill
from saga.observe.moments import GoesOn, Report, StandsStill


@dataclass(slots=True)
class Standstills:
    """Standstills that people know of."""

    service: str
    report: Report
    _told: dict[tuple[str, int | None], Standstill] = field(default_factory=dict)

    def update(self, standstills: Iterable[Standstill]) -> None:
        """Tell of what stands still from now on, and of what goes on again."""
        before, now = self._told, {(each.topic, each.partition): each for each in standstills}
        if now == before:
            return
        self._told = now
        for (topic, partition), each in now.items():
            if before.get((topic, partition)) != each:
                self.report(
                    StandsStill(
                        service=self.service, topic=topic, partition=partition, offset=each.offset, error=each.reason
                    )
                )
        for topic, partition in before.keys() - now.keys():
            self.report(GoesOn(service=self.service, topic=topic, partition=partition))
