"""Bugs planted in what becomes of people's commands, one each."""

from typing import Any

import pytest
from msgspec.structs import replace

from saga.engine.execution import control_log
from saga.engine.execution.saga_context import SagaContext
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.engine.processing_state import ProcessingState
from saga.messaging.names import PROGRESS
from saga.messaging.operator_commands import OperatorCommand
from saga.progress import journal, operator_commands
from saga.progress.document import PendingMessage, SagaProgress, progress_key
from saga.progress.journal import Commit, WriteContext
from tests.mutants.runtime_mutants import rewrite_source


def a_replay_runs_twice(patch: pytest.MonkeyPatch) -> None:
    """It is queued once more, as a message of its own."""
    replayed = operator_commands._apply_replay

    def twice(p: SagaProgress, write_context: WriteContext, command: OperatorCommand, kept: PendingMessage) -> Commit:
        again = replace(kept, message=replace(kept.message, id=f"{kept.message.id}-again"), dead=None)
        return replayed(replace(p, queue=(*p.queue, again)), write_context, command, kept)

    patch.setattr(operator_commands, "_apply_replay", twice)


def a_compensation_may_be_discarded(patch: pytest.MonkeyPatch) -> None:
    discarded = operator_commands.discard_message

    def gone(
        p: SagaProgress, write_context: WriteContext, command: OperatorCommand, kept: PendingMessage, **remains: Any
    ) -> Commit:
        left = journal.remove_messages(p.compensating, kept.handler, [kept.message.id])
        return discarded(replace(p, compensating=left), write_context, command, kept, **remains)

    patch.setattr(operator_commands, "_why_not_discardable", lambda p, roles, role, kept: None)
    patch.setattr(operator_commands, "discard_message", gone)


def a_command_overwrites_concurrent_writes(patch: pytest.MonkeyPatch) -> None:
    """Let a worker that has lost the partition execute it all the same, by its cached progress."""
    save = ProgressRepository.write_progress

    async def saved(repository: ProgressRepository, turn: ProcessingState, written: Commit) -> ProcessingState:
        service = repository.service
        if isinstance(turn.message, OperatorCommand):
            there = await service.ports.store.get(PROGRESS, progress_key(service.name, turn.message.saga))
            turn = replace(turn, cas=0 if there is None else there.cas)
        return await save(repository, turn, written)

    patch.setattr(ProgressRepository, "write_progress", saved)


def a_resolution_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Make the call again, whatever an operator entered."""
    init = SagaContext.__init__

    def forgetful(self: SagaContext, *given: Any) -> None:
        init(self, *given)
        self.replay._resolved = {}

    patch.setattr(SagaContext, "__init__", forgetful)


def a_flag_changes_under_a_rerun(patch: pytest.MonkeyPatch) -> None:
    """Ask for it again each time, and record nothing."""

    async def asked(self: SagaContext, name: str) -> bool:
        return await control_log.is_on(self.service, self.processing.position, name, self.processing.message.saga)

    patch.setattr(SagaContext, "flag", asked)


def open_sagas_expire(patch: pytest.MonkeyPatch) -> None:
    """A saga that waits for a person is forgotten like one that is over."""
    rewrite_source(
        patch,
        ProgressRepository,
        "write_progress",
        "None if p.is_open else service.retention_s",
        "service.retention_s",
    )
