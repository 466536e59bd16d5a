"""Bugs planted in the runtime, one each: what the simulation must find.

Those of a rule of docs/protocol.md are the functions of `tests/exploration/test_rules.py`; the others are here.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from saga.broker.port import Membership
from saga.errors import Fenced
from saga.messages import Message, Outgoing, Partition, Position
from saga.progress import compensate, decide, ids, record
from saga.progress.document import Call, Intent, Kept, Result, Snapshot
from saga.progress.record import Hand, Written
from saga.progress.roles import Role, Roles
from saga.runtime import documents, handling, persistence, turn
from saga.runtime.participant import Participant
from saga.runtime.ports import RunningPorts
from saga.runtime.saga import RunningSaga
from saga.runtime.standing import Turn
from saga.runtime.worker import Worker


def commits_before_publishing(patch: pytest.MonkeyPatch) -> None:
    save = persistence.save

    async def commit_first(service: Participant, turn: Turn, written: Written) -> Turn:
        turn = await save(service, turn, written)
        if written.entry is not None and isinstance(service.ports, RunningPorts):
            position = turn.position
            prefix = service.ports.prefixes.get(Partition(position.topic, position.partition))
            if prefix is not None and prefix._done.get(position.offset) is False:
                prefix.finished(position.offset)
        return turn

    finished = record_finished(patch)
    assert finished
    patch.setattr(persistence, "save", commit_first)
