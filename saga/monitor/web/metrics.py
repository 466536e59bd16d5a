"""Metrics of the monitor for Prometheus: what waits for a person now, also long after it was reported."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from saga.monitor.web.site import site_of
from saga.ops.attention import AttentionItem

OPEN_DEAD_LETTERS = "saga_open_dead_letters"
OPEN_ESCALATIONS = "saga_open_escalations"
AGE_S = "saga_open_letters_age_seconds"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def is_open_escalation(told: AttentionItem) -> bool:
    """Return whether an escalation still needs a person: its compensation fails on, or calls are to be put right."""
    return told.letter.what == "escalation" and (
        told.state == "goes on" or (told.state == "-" and bool(told.letter.calls))
    )


def count_by_service(letters: Iterable[AttentionItem]) -> Mapping[str, int]:
    """Count letters by service."""
    return Counter(each.letter.service for each in letters)


async def metrics(request: Request) -> Response:
    """Answer with the open letters of each service, as they were read last, and how long ago that was."""
    found = await site_of(request).desk.letters()
    lines = [*_gauge(AGE_S, "Seconds since the letters were read.", {"": round(found.age_s, 3)})]
    if found.value is not None:
        told = found.value.items
        dead = count_by_service(each for each in told if each.state == "blocks")
        escalated = count_by_service(filter(is_open_escalation, told))
        lines += _gauge(OPEN_DEAD_LETTERS, "Dead letters that block a saga until a person acts.", dead)
        lines += _gauge(OPEN_ESCALATIONS, "What cannot be undone until a person acts.", escalated)
    return PlainTextResponse("\n".join([*lines, ""]), headers={"content-type": CONTENT_TYPE})


def _gauge(name: str, meaning: str, values: Mapping[str, float]) -> Iterator[str]:
    """Lines of one gauge in Prometheus' text format, by service; without a label where the service is empty."""
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} gauge"
    for service, value in sorted(values.items()):
        escaped = service.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        yield f'{name}{{service="{escaped}"}} {value}' if service else f"{name} {value}"


ROUTES = [Route("/metrics", metrics)]
