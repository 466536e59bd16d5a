"""Sensitive values that one run has been given: they are hidden in what is said of it, whoever quotes them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from saga.contracts.sensitive_fields import collect_secrets
from saga.declarations.values import Reaction
from saga.encryption.sensitive_fields import find_marks
from saga.engine.errors import describe_exception
from saga.engine.execution import call_arguments
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import BadInput, KeyMissing
from saga.messages import Event
from saga.progress.document import Intent, StepRecord


class Hiding:
    """Part of a running saga that knows what is sensitive of all that it was given."""

    service: ServiceRuntime
    handler: Reaction
    intent: Intent
    _given: dict[str, Any]
    _state: Any = None

    given: Mapping[str, object] = MappingProxyType({})
    """Arguments that the handler was given."""
    seen: list[tuple[Any, object]]
    """Values with sensitive parts that steps, reads and updates gave, each with its type."""
    hides: list[str]
    """Texts that are hidden in what is said of it, beside those of these values."""

    def of_state(self) -> list[str]:
        """Texts of the sensitive fields of its state, as it was and as it is now."""
        marks = self.service.state_marks
        if marks is None:
            return []
        return [*marks.texts(self.service.state_of(self._given)), *marks.texts(self._state)]

    def secrets(self) -> list[str]:
        """Texts of all sensitive values that this run has been given: they are hidden in what is said of it."""
        texts = []
        if self.service.sensitive:
            events = [event for event in self.given.values() if isinstance(event, Event)] or self._events()
            texts = [text for event in events for text in collect_secrets(event)]
        texts += self.hides
        texts += self.of_state()
        for type_, value in self.seen:
            if (marks := find_marks(type_)) is not None:
                texts += marks.texts(value)
        return texts

    def with_arguments(
        self,
        asked: StepRecord,
        written: bytes,
        call: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        first: int = 0,
    ) -> StepRecord:
        """The call with its arguments for people, if they are short; `written`: the same as JSON. A run that was given
        anything sensitive, be it a boolean, keeps them to itself: in what its handler makes of that, nobody could find
        it again."""
        if len(written) > call_arguments.BYTES_MAX or not (args or kwargs) or any(self.secrets()):
            return asked
        return replace(asked, arguments=call_arguments.describe_arguments(call, args, kwargs, first=first))

    def _events(self) -> list[Event]:
        """Events of a run that is not handed them: it takes another one's place."""
        found = []
        for part in self.intent.parts:
            with suppress(BadInput, KeyError, KeyMissing):
                found.append(self.service.decode(self.handler.name, part))
        return found

    def words_of(self, why: Exception) -> str:
        """Words of an exception without the sensitive values of this run."""
        return describe_exception(why, self.secrets())
