"""Adapter of the embedded broker: its address is a file. Importing this module loads no driver."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from saga.broker.adapter import Copies
from saga.broker.administration import Administration
from saga.broker.port import Broker
from saga.support import settings
from saga.support.addresses import file_in, is_missing
from saga.support.clock import Clock
from saga.support.settings import ChosenSettings, Options, Problem

if TYPE_CHECKING:
    from saga.broker.embedded.membership import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedOptions:
    """Settings that only the embedded broker has."""

    embedded_away_days: float = 30.0
    """Days for which the broker file keeps records, beyond the retention of their topic, for a service that does not
    run. `saga doctor` names such services; `saga offsets delete` forgets one that never comes back."""


class EmbeddedAdapter:
    """Description of the embedded broker for `saga.configuration.adapters`: see `saga.broker.adapter`."""

    schemes = ("embedded",)
    takes = "embedded:///FILE"
    example = "embedded:///file (relative) or embedded:////folder/file (absolute)"
    creates_topics = True
    options = Options(EmbeddedOptions, {"SAGA_EMBEDDED_AWAY_DAYS": settings.number(float, 1, 36_500, "days")})

    def check(self, address: str) -> None:
        embedded_path(address)

    def problems(self, settings: ChosenSettings) -> Iterator[Problem]:
        yield from ()

    def create_broker(self, settings: ChosenSettings, clock: Clock) -> Broker:
        from saga.broker.embedded.broker import EmbeddedBroker

        file, timing = embedded_path(settings.broker), _read_timing(settings)
        return EmbeddedBroker(file, clock=clock, timing=timing, record_bytes_max=settings.record_bytes_max)

    def create_administration(self, settings: ChosenSettings, clock: Clock) -> Administration:
        from saga.broker.embedded.broker import EmbeddedAdministration

        file, timing = embedded_path(settings.broker), _read_timing(settings)
        return EmbeddedAdministration(file, clock=clock, timing=timing, record_bytes_max=settings.record_bytes_max)

    def missing_file(self, settings: ChosenSettings) -> Path | None:
        file = embedded_path(settings.broker)
        return file if is_missing(file) else None

    def required_replicas(self, settings: ChosenSettings) -> Copies:
        return Copies()  # a single file has no replicas


EMBEDDED = EmbeddedAdapter()


def _read_timing(settings: ChosenSettings) -> "Timing":
    from saga.broker.embedded.membership import Timing

    return Timing(away_s_max=settings.of(EmbeddedOptions).embedded_away_days * 86_400)


def embedded_path(url: str) -> Path:
    """Return the path of an embedded broker's file. Raises `ValueError`.

    Three slashes begin a path relative to the current folder, four an absolute one.

    >>> embedded_path("embedded:///.saga/broker.db")
    PosixPath('.saga/broker.db')
    >>> embedded_path("embedded:////var/lib/saga/broker.db")
    PosixPath('/var/lib/saga/broker.db')
    >>> embedded_path("embedded://broker.db")
    Traceback (most recent call last):
    ValueError: a file is meant, so three slashes follow the colon: embedded:///broker.db
    """
    return Path(file_in(url, "embedded", "broker"))
