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
"""Most characters that are told of an error."""

Answer = TypeVar("Answer")


class MonitorClient:
    """Monitor at an address, host and port."""

    def __init__(self, address: str) -> None:
        self._address = address

    def saga(self, saga: str) -> Timeline | None:
        """One saga across all services."""
        return self._ask(f"/api/trace/{quote(saga, safe='')}", Timeline)

    def stuck(self) -> StuckSagas:
        """Sagas that are stuck now."""
        return self._ask_required("/api/stuck", StuckSagas)

    def rates(self) -> HandlerRates:
        """Rates and times of each handler."""
        return self._ask_required("/api/rates", HandlerRates)

    def errors(self) -> tuple[ErrorClass, ...]:
        """Failures by class."""
        return self._ask_required("/api/errors", tuple[ErrorClass, ...])

    def hot(self) -> HotSpots:
        """Hot keys and partitions."""
        return self._ask_required("/api/hot", HotSpots)

    def _ask_required(self, path: str, kind: type[Answer]) -> Answer:
        answer = self._ask(path, kind)
        if answer is None:
            raise SagaError(f"what answers at {self._address} is no monitor: it has no {path}; mend SAGA_MONITOR")
        return answer

    def _ask(self, path: str, kind: type[Answer]) -> Answer | None:
        """Ask; `None` if there is nothing of that name. Raises `OSError` if nobody answers, `SagaError` if the answer
        is none of a monitor."""
        host, _, port = self._address.rpartition(":")
        connection = HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Accept": "application/json"})
            with connection.getresponse() as response:  # or its socket stays open, if it is the last on it
                content = response.read(ANSWER_BYTES_MAX)
            if response.status == 404:
                return None
            if response.status == 503:
                raise SagaError(f"the monitor at {self._address} cannot say: {_find_error(content)}")
            if response.status not in (200, 206):  # 206: what is not in it, it says itself
                raise SagaError(f"the monitor at {self._address} answers {response.status} to {path}; see its log")
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, HTTPException) as why:
            raise SagaError(f"what answers at {self._address} is no monitor: {why}; mend SAGA_MONITOR") from why
        finally:
            connection.close()


class _ErrorAnswer(Struct, frozen=True):
    error: str


def _find_error(content: bytes) -> str:
    """Error that an answer tells of, shortened."""
    try:
        return shorten(msgspec.json.decode(content, type=_ErrorAnswer).error, SAID_MAX)
    except msgspec.DecodeError:
        return "it is not ready, or has too many to answer; ask again"
