"""Client of a running monitor, over HTTP."""

from http.client import HTTPConnection, HTTPException
from typing import TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from saga.errors import SagaError
from saga.monitor.views import ErrorClass, HandlerRates, HotSpots, StuckSagas, Timeline
from saga.support.printable import shorten

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 << 20
SAID_MAX = 1000
"""Most characters that are shown of an error."""

Answer = TypeVar("Answer")


class MonitorClient:
    """Client of the monitor at an address (host and port)."""

    def __init__(self, address: str) -> None:
        self._address = address

    def saga(self, saga: str) -> Timeline | None:
        """Return one saga across all services."""
        return self._ask(f"/api/trace/{quote(saga, safe='')}", Timeline)

    def stuck(self) -> StuckSagas:
        """Return the sagas that are stuck now."""
        return self._ask_required("/api/stuck", StuckSagas)

    def rates(self) -> HandlerRates:
        """Return rates and durations of each handler."""
        return self._ask_required("/api/rates", HandlerRates)

    def errors(self) -> tuple[ErrorClass, ...]:
        """Return failures by class."""
        return self._ask_required("/api/errors", tuple[ErrorClass, ...])

    def hot(self) -> HotSpots:
        """Return hot sagas and partitions."""
        return self._ask_required("/api/hot", HotSpots)

    def _ask_required(self, path: str, kind: type[Answer]) -> Answer:
        answer = self._ask(path, kind)
        if answer is None:
            raise SagaError(f"what answers at {self._address} is no monitor: it has no {path}; mend SAGA_MONITOR")
        return answer

    def _ask(self, path: str, kind: type[Answer]) -> Answer | None:
        """Send a query; `None` if the monitor does not know what it is about. Raises `OSError` if no server answers,
        `SagaError` if the answer is not from a monitor."""
        host, _, port = self._address.rpartition(":")
        connection = HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Accept": "application/json"})
            with (
                connection.getresponse() as response
            ):  # else its socket stays open, if it holds the last reference to it
                content = response.read(ANSWER_BYTES_MAX)
            if response.status == 404:
                return None
            if response.status == 503:
                raise SagaError(f"the monitor at {self._address} cannot say: {_find_error(content)}")
            if response.status not in (200, 206):  # 206: the answer itself says what is missing from it
                raise SagaError(f"the monitor at {self._address} answers {response.status} to {path}; see its log")
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, HTTPException) as why:
            raise SagaError(f"what answers at {self._address} is no monitor: {why}; mend SAGA_MONITOR") from why
        finally:
            connection.close()


class _ErrorAnswer(Struct, frozen=True):
    error: str


def _find_error(content: bytes) -> str:
    """Return the error message in an answer, shortened."""
    try:
        return shorten(msgspec.json.decode(content, type=_ErrorAnswer).error, SAID_MAX)
    except msgspec.DecodeError:
        return "it is not ready, or has too many to answer; ask again"
