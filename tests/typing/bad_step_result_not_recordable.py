"""A step whose result cannot be written into a progress. Rejected by: mypy, basedpyright."""

from saga import Saga


class Response:
    status = 200


async def get(url: str) -> Response:
    return Response()


async def look(saga: Saga) -> None:
    await saga.step(get, "https://bank.example")  # bad
