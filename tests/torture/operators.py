"""Operators: they replay the dead letters of the payment service from the time when the bank was broken, some of them
twice."""

from random import Random  # noqa: TID251 - seeded

from saga.broker.port import Broker
from saga.errors import BrokerUnavailable
from saga.messaging import operator_commands
from saga.messaging.names import dead_letter_topic
from saga.ops.dead_letters import DeadLetter, decode_dead_letter
from saga.support.clock import Clock
from services.audit.checks import Check

SERVICE = "payment"
TWICE = 0.2
"""Share of commands that another operator sends, too."""
AGAIN_S = 0.2
WHO, WHY = "ada", "the bank has put its books right"


class Operators:
    """They know what they have asked for, and leave unreadable records alone."""

    def __init__(self, broker: Broker, chance: Random, clock: Clock) -> None:
        self._broker, self._chance, self._clock = broker, chance, clock
        self._asked: set[str] = set()

    @property
    def asked(self) -> int:
        """Number of dead letters of which they have asked for a replay."""
        return len(self._asked)

    async def cure(self) -> int:
        """Have each new dead letter of a handler replayed; the number of them."""
        new = [letter for letter in await self._open() if letter.id not in self._asked]
        again = [letter for letter in new if self._chance.random() < TWICE]
        records = [
            operator_commands.command_to_record(
                SERVICE,
                letter.saga or "",
                "replay",
                operator_commands.CommandValue(dead=letter.id, who=WHO, why=why),
                self._clock.now_ms(),
            )
            for why, letters in ((WHY, new), (f"{WHY}, says Bob", again))
            for letter in letters
        ]
        while records:
            try:
                await self._broker.publish(records)
                break
            except BrokerUnavailable:  # perhaps some are in the log: sent again they are the same commands
                await self._clock.sleep(AGAIN_S)
        self._asked |= {letter.id for letter in new}
        return len(new)

    async def check_replays(self) -> Check:
        """Check that each dead letter of a handler has its end."""
        left = await self._open()
        return Check(
            name="what died is cured",
            figures=f"{len(self._asked)} dead letters replayed",
            differences=tuple(f"{each.saga}: {each.handler}: {each.reason}" for each in left[:5]),
        )

    async def _open(self) -> list[DeadLetter]:
        """Dead letters of handlers that have no end yet."""
        letters = dict[str, DeadLetter]()
        while True:
            try:
                async for record in self._broker.scan(dead_letter_topic(SERVICE)):
                    if (letter := decode_dead_letter(SERVICE, record)) is not None:
                        letters[letter.id] = letter
                break
            except BrokerUnavailable:
                await self._clock.sleep(AGAIN_S)
        ended = {letter.ends for letter in letters.values()}
        return [
            each
            for each in letters.values()
            if each.what == "dead letter" and each.handler and each.saga and each.id not in ended
        ]
