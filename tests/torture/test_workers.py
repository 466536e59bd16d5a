"""Workers under torture: one that could not start is no accident of ours while a server is down."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from saga.support.clock import SystemClock
from services.demo.fleet import Fallen
from tests.torture.workers import COULD_NOT_START, Worker, Workers


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Workers with settings with which no service starts, which it says at once."""
    with Workers(tmp_path, {**os.environ, "SAGA_BROKER": "nothing://that-is-one"}, SystemClock()) as workers:
        yield workers


@pytest.fixture
def guest(workers: Workers) -> Worker:
    """One that has ended, for it could not start."""
    guest = workers.hire("payment", guest=True)
    assert guest.process.wait(60) == COULD_NOT_START
    return guest


async def test_a_guest_that_could_not_start_while_a_server_was_down_leaves_as_any_other(
    workers: Workers, guest: Worker
) -> None:
    await workers.dismiss(guest, in_trouble=True)
    assert workers.not_started == 1


async def test_one_that_could_not_start_though_all_servers_answer_has_fallen(workers: Workers, guest: Worker) -> None:
    with pytest.raises(Fallen, match=r"payment-1 ended with 2; its log:\n(.*\n)+.*nothing:"):
        await workers.dismiss(guest, in_trouble=False)
