"""Each rule about states and handlers of another version is there for a loss: take it away, and the exploration finds
it."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from saga.declarations.values import Declared
from saga.engine import recorded_values
from saga.engine.execution import saga_context
from saga.engine.execution.saga_context import SagaContext
from saga.engine.execution.step_replay import StepReplay
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.engine.prepared_service import PreparedService
from saga.progress.document import PLAIN, Intent, SagaProgress
from tests.exploration.without_a_rule import Take, check_loss
from verification import services

migrated = recorded_values.migrate_progress


def a_migration_is_applied_twice(patch: pytest.MonkeyPatch) -> None:
    """The state is written migrated, without its version."""

    def unnumbered(
        service: PreparedService, p: SagaProgress, delta: dict[str, Any], *of: Any
    ) -> tuple[SagaProgress, dict[str, Any]]:
        if p.version == service.version:
            return p, delta
        after, whole = migrated(service, p, delta, *of)
        return replace(after, version=p.version, format=PLAIN), whole

    patch.setattr(recorded_values, "migrate_progress", unnumbered)


def a_newer_state_is_read_by_an_older_release(patch: pytest.MonkeyPatch) -> None:
    check = ProgressRepository._check_declared
    patch.setattr(ProgressRepository, "_check_declared", lambda s, p, *rest: check(s, replace(p, version=1), *rest))


def a_rerun_gets_the_unmigrated_state(patch: pytest.MonkeyPatch) -> None:
    """What a run writes at its end is migrated all the same."""
    unmigrated = SimpleNamespace(migrate_fields=lambda service, state, version, saga: state)
    patch.setattr(saga_context, "recorded_values", unmigrated)


def a_rerun_gets_a_state_migrated_only_with_the_saga(patch: pytest.MonkeyPatch) -> None:
    """What a run began on counts as migrated when the saga's own state is."""

    def together(
        service: PreparedService, p: SagaProgress, delta: dict[str, Any], *of: Any
    ) -> tuple[SagaProgress, dict[str, Any]]:
        after, whole = migrated(service, p, delta, *of)
        intents: tuple[Intent, ...] = tuple([replace(i, version=after.version) for i in after.intents])
        return replace(after, intents=intents), whole

    patch.setattr(recorded_values, "migrate_progress", together)


def a_migration_is_not_recorded_in_its_transition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recorded_values, "migrate_progress", lambda s, p, delta, *of: (migrated(s, p, delta, *of)[0], delta))


def an_older_release_resumes_a_run_of_a_newer_one(patch: pytest.MonkeyPatch) -> None:
    """Whatever version began a run, the handler of this release is called."""
    patch.setattr(StepReplay, "is_resolved", True)


def a_rerun_has_the_current_handler_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SagaContext, "version", property(lambda saga: saga.handler.version))


def a_renamed_service_ignores_its_former_name(patch: pytest.MonkeyPatch) -> None:
    """As if its declaration did not say so: ids, keys and the progress are made of the new name."""
    declared_by = services.declared_by

    def forgetful(explored: services.Explored, release: int) -> Declared:
        declared = declared_by(explored, release)
        return dataclasses.replace(declared, name=declared.title)

    patch.setattr(services, "declared_by", forgetful)


RULES: dict[Take, str] = {
    a_renamed_service_ignores_its_former_name: "renamed: a crash",
    an_older_release_resumes_a_run_of_a_newer_one: "improved: begun under either, gone on with by either",
    a_rerun_has_the_current_handler_version: "improved: a worker dies between two steps",
    a_migration_is_applied_twice: "version: one run before, one after",
    a_newer_state_is_read_by_an_older_release: "version: one run before, one after",
    a_rerun_gets_the_unmigrated_state: "version: begun before, gone on with after",
    a_rerun_gets_a_state_migrated_only_with_the_saga: "version: parked, and another undone meanwhile",
    a_migration_is_not_recorded_in_its_transition: "version: transitions in archives",
}


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_there_is_a_loss(take_away: Take) -> None:
    check_loss(take_away, RULES[take_away])
