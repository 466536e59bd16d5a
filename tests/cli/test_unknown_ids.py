"""Whatever a command is given the id of: of one that does not exist it says so, by name, and does not end as if all
were well."""

import asyncio
from pathlib import Path

import pytest

from saga.broker.embedded.broker import EmbeddedBroker
from saga.engine.prepared_service import topics_of
from saga.support.clock import SystemClock
from services.payment import payment
from tests.cli.conftest import Call

BY = ("--who", "ada", "--why", "to see")
COMMANDS = [
    "show order-nope",
    "verify-history order-nope",
    "trace order-nope",
    "tail order-nope --no-follow",
    "dead show order-nope",
    "dead replay payment --saga order-nope BY",
    "dead discard payment --saga order-nope BY",
    "dead resolve order-nope --step reserve --answered 1 BY",
    "release payment --saga order-nope BY",
    "rebuild services.payment --dry-run --saga order-nope",
    "repair services.payment --dry-run --saga order-nope",
    "dead replay nobody-nope --all BY",
    "dead list --service nobody-nope",
    "release nobody-nope --all BY",
    "list --service nobody-nope",
    "list order-nope",
    "audit nobody-nope",
    "positions show nobody-nope",
    "control flag nobody-nope new --percent 100 BY",
    "control show nobody-nope",
    "publish Nope-nope",
]


@pytest.fixture
def log(shop: Path) -> Path:
    """Folder of the shop, with a broker file that has the topics of payment."""

    async def make() -> None:
        async with EmbeddedBroker(shop / ".saga" / "broker.db", clock=SystemClock()) as broker:
            await broker.ensure(topics_of(payment.declared))

    asyncio.run(make())
    return shop


@pytest.mark.parametrize("command", COMMANDS)
def test_an_id_that_does_not_exist_is_named_and_the_command_fails(command: str, log: Path, saga: Call) -> None:
    done = saga(*[part for word in command.split() for part in (BY if word == "BY" else (word,))])
    assert done.exit_code in (1, 2)
    assert "nope" in done.output
