"""Description of the embedded broker: its address is a file. Loads no driver."""

from collections.abc import Iterator
from pathlib import Path

from saga.adapter_description import Chosen, Problem
from saga.addresses import file_in
from saga.broker.adapter import Copies
from saga.broker.administration import Administration
from saga.broker.port import Broker
from saga.clock import Clock


class EmbeddedAdapter:
    """Description of the embedded broker for `saga.adapters`: see `saga.broker.adapter`."""

    schemes = ("embedded",)
    takes = "embedded:///FILE"
    example = "embedded:///file (relative) or embedded:////folder/file (absolute)"
    makes_topics = True
    options = None

    def check(self, address: str) -> None:
        embedded_path(address)

    def problems(self, settings: Chosen) -> Iterator[Problem]:
        yield from ()

    def at(self, settings: Chosen, clock: Clock) -> Broker:
        from saga.broker.embedded.broker import EmbeddedBroker

        file = embedded_path(settings.broker)
        return EmbeddedBroker(file, clock=clock, record_bytes_max=settings.record_bytes_max)

    def administration(self, settings: Chosen, clock: Clock) -> Administration:
        from saga.broker.embedded.administration import EmbeddedAdministration

        file = embedded_path(settings.broker)
        return EmbeddedAdministration(file, clock=clock, record_bytes_max=settings.record_bytes_max)

    def unmade(self, settings: Chosen) -> Path | None:
        file = embedded_path(settings.broker)
        return None if file.exists() else file

    def copies(self, settings: Chosen) -> Copies:
        return Copies()  # on one disk there are none, whatever is asked for


EMBEDDED = EmbeddedAdapter()


def embedded_path(url: str) -> Path:
    """Path of an embedded broker's file; three slashes begin a path relative to the current folder. Raises
    `ValueError`.

    >>> embedded_path("embedded:///.saga/broker.db")
    PosixPath('.saga/broker.db')
    >>> embedded_path("embedded:////var/lib/saga/broker.db")
    PosixPath('/var/lib/saga/broker.db')
    >>> embedded_path("embedded://broker.db")
    Traceback (most recent call last):
    ValueError: a file is meant, so three slashes follow the colon: embedded:///broker.db
    """
    return Path(file_in(url, "embedded", "broker"))
