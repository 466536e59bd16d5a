"""Words for people about a failure: where in their own code it was, and of each dead letter once."""

import json
from pathlib import Path

from saga.engine.errors import find_origin
from saga.engine.outage_watch import NEWS_MAX, OutageWatch
from saga.engine.recorded_values import encode_recorded
from saga.errors import Permanent
from saga.support.clock import SystemClock


def test_where_names_the_line_of_the_services_own_code() -> None:
    try:
        json.loads("{")
    except ValueError as why:
        where = find_origin(why)
    assert where is not None
    assert "decoder.py" in where


def test_where_is_the_handlers_line_when_the_toolkit_raised() -> None:
    try:
        encode_recorded(object(), "charge", "what it returned by")
    except Permanent as why:
        where = find_origin(why)
    assert where is not None
    assert where.startswith(str(Path(__file__)))
    assert where.endswith("in test_where_is_the_handlers_line_when_the_toolkit_raised")


def test_a_dead_letter_is_news_once_and_what_is_kept_of_it_is_bounded() -> None:
    watching = OutageWatch("payment", SystemClock(), print)
    assert watching.is_news("dead-1")
    assert not watching.is_news("dead-1")
    assert all(watching.is_news(f"dead-{n}") for n in range(2, NEWS_MAX + 2))
    assert len(watching._news) == NEWS_MAX
    assert watching.is_news("dead-1")
