"""Bugs planted in the relay of document changes, one each: changes that are lost, come twice, or in another order."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from saga.engine.consumer import record_router
from saga.engine.consumer.change_relay import ChangeRelay
from saga.messages import Event, Message, Record
from tests.mutants.runtime_mutants import rewrite_source

FORGOTTEN = "await self.source.forget(self.service, noted[-1].number)"


def a_removal_has_the_id_of_the_removed_version(patch: pytest.MonkeyPatch) -> None:
    """On SQLite both have one version."""
    patch.setattr(record_router, "id_of_change", lambda key, version, *, is_gone: f"{key}@{version}")


def changes_are_forgotten_before_they_are_published(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(patch, ChangeRelay, "relay_once", "        try:\n", f"        {FORGOTTEN}\n        try:\n")


def changes_recorded_during_publishing_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(patch, ChangeRelay, "relay_once", FORGOTTEN, "await self.source.forget(self.service, 2**60)")


def changes_are_published_in_reverse_order(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(patch, ChangeRelay, "relay_once", "for each in noted])", "for each in reversed(noted)])")


def changes_are_identified_by_their_offset(patch: pytest.MonkeyPatch) -> None:
    _other_ids(patch, lambda message, record: f"|{record.topic}/{record.partition}/{record.offset}")


def changes_are_identified_by_their_key_alone(patch: pytest.MonkeyPatch) -> None:
    _other_ids(patch, lambda message, record: message.id.partition("@")[0])


def changes_are_identified_by_their_record_time(patch: pytest.MonkeyPatch) -> None:
    """The time at which the log has taken them: a repetition has another one."""
    _other_ids(patch, lambda message, record: f"{message.id.partition('@')[0]}@{record.time_ms}")


def _other_ids(patch: pytest.MonkeyPatch, id_of: Callable[[Message, Record], str]) -> None:
    honest = record_router.parse_change

    def message_in(record: Record, event: type[Event]) -> Message | None:
        message = honest(record, event)
        return None if message is None else replace(message, id=id_of(message, record))

    patch.setattr("saga.engine.consumer.record_router.parse_change", message_in)
