"""Several listen to one runtime; one that fails harms neither the runtime nor the others."""

import logging

import pytest

from saga.telemetry.events import Started, TelemetryEvent, to_all

STARTED = Started(service="payment", topics=("orders",))


def fails(moment: TelemetryEvent) -> None:
    raise RuntimeError("nobody counts here")


def test_each_listener_is_called_even_after_one_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    first: list[TelemetryEvent] = []
    last: list[TelemetryEvent] = []
    report = to_all(first.append, fails, last.append)
    report(STARTED)
    report(STARTED)
    assert first == last == [STARTED, STARTED]


def test_a_failing_listener_is_reported_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    report = to_all(fails)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            report(STARTED)
    assert caplog.text.count("a telemetry listener failed") == 1
    assert "nobody counts here" in caplog.text
