"""Rules about answers that lie apart: take one away, and the exploration finds a rerun that goes another way."""

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.engine.persistence import outbox, overflow_store
from saga.engine.persistence.overflow_store import OverflowStore
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.engine.processing_state import ProcessingState
from saga.errors import Ambiguous, Exists
from saga.progress import overflow
from saga.progress.document import StepRecord
from saga.progress.journal import Commit
from tests.exploration.without_a_rule import Take, check_loss


def claims_are_not_read(patch: pytest.MonkeyPatch) -> None:
    async def as_it_is(store: OverflowStore, turn: ProcessingState, call: StepRecord) -> StepRecord:
        return call

    patch.setattr(OverflowStore, "load_claim", as_it_is)


def claims_are_written_after_the_progress_that_names_them(patch: pytest.MonkeyPatch) -> None:
    light, save, late = (
        OverflowStore.store_claim,
        ProgressRepository.write_progress,
        list[tuple[OverflowStore, ProcessingState, StepRecord]](),
    )

    async def put_off(store: OverflowStore, turn: ProcessingState, call: StepRecord) -> StepRecord:
        late.append((store, turn, call))
        return replace(call, value=Raw(b"null"), claim=overflow.digest_content(bytes(call.value)))

    async def then(repository: ProgressRepository, turn: ProcessingState, written: Commit) -> ProcessingState:
        put = [*late]
        late.clear()
        turn = await save(repository, turn, written)
        for each in put:
            await light(*each)
        return turn

    patch.setattr(OverflowStore, "store_claim", put_off)
    patch.setattr(ProgressRepository, "write_progress", then)


def a_claim_with_an_ambiguous_write_counts_as_written(patch: pytest.MonkeyPatch) -> None:
    patiently = outbox.retry_while_unavailable

    async def believe(service: Any, at: Any, operation: str, *args: Any, **rest: Any) -> Any:
        try:
            return await patiently(service, at, operation, *args, **rest)
        except Ambiguous:
            if operation != "claim":
                raise
            raise Exists("it will be there") from None

    patch.setattr(overflow_store, "retry_while_unavailable", believe)


RULES: dict[Take, str] = {
    claims_are_not_read: "claims: two steps, crash",
    claims_are_written_after_the_progress_that_names_them: "claims: two steps, crash",
    a_claim_with_an_ambiguous_write_counts_as_written: "claims: two steps, lost answers",
}


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_there_is_a_loss(take_away: Take) -> None:
    check_loss(take_away, RULES[take_away])
