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
    "sagas show order-nope",
    "sagas verify order-nope",
    "monitor trace order-nope",
    "topics tail order-nope --no-follow",
    "dead show order-nope",
    "dead replay payment --saga order-nope BY",
    "dead discard payment --saga order-nope BY",
    "dead resolve order-nope --step reserve --answered 1 BY",
    "dead release payment --saga order-nope BY",
    "sagas rebuild services.payment --dry-run --saga order-nope",
    "sagas repair services.payment --dry-run --saga order-nope",
    "dead replay nobody-nope --all BY",
    "dead list --service nobody-nope",
    "dead release nobody-nope --all BY",
    "sagas list --service nobody-nope",
    "sagas list order-nope",
    "audit nobody-nope",
    "offsets show nobody-nope",
    "control flag nobody-nope new --percent 100 BY",
    "control show nobody-nope",
    "publish Nope-nope",
]


@pytest.fixture
def log(shop: Path) -> Path:
    """Folder of the shop, with a broker file that has the topics of payment."""

    async def make() -> None:
        async with EmbeddedBroker(shop / ".saga" / "broker.db", clock=SystemClock()) as broker:
            await broker.ensure_topics(topics_of(payment.declared))

    asyncio.run(make())
    return shop


@pytest.mark.parametrize("command", COMMANDS)
def test_an_id_that_does_not_exist_is_named_and_the_command_fails(command: str, log: Path, saga: Call) -> None:
    done = saga(*[part for word in command.split() for part in (BY if word == "BY" else (word,))])
    assert done.exit_code in (1, 2)
    assert "nope" in done.output


@pytest.mark.parametrize("command", [
    "sagas show ID", "sagas verify ID", "explain ID", "dead show ID", "topics tail ID --no-follow", "offsets show ID",
    "dead replay payment --saga ID BY", "control flag payment new --percent 0 --for ID BY", "monitor trace ID",
    "sagas repair services.payment --dry-run --saga ID", "dead discard payment --saga order-3 --who ID --why ID",
])  # fmt: skip
def test_an_argument_that_is_no_text_ends_no_command_with_a_traceback(command: str, log: Path, saga: Call) -> None:
    """A shell passes on any bytes, such as those of an id that was written in another encoding."""
    done = saga(
        *[part for word in command.replace("ID", "\udcffid").split() for part in (BY if word == "BY" else (word,))]
    )
    assert done.exit_code in (1, 2)
    assert "\\udcffid" in done.output


def test_an_unencodable_text_of_another_origin_is_not_blamed_on_the_arguments(
    log: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saga.cli.sagas.print_lines", lambda *lines, err=False: "\udcff".encode())
    with pytest.raises(UnicodeEncodeError):
        saga("sagas", "show", "order-1")
