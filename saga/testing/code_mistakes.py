"""Recognise mistakes in the code of handlers and fakes, so that a world can name them. A handler may return a value
that its annotation does not allow. A fake may raise an exception because of a mistake in its own code, instead of one
that the external system would raise. A check that a test makes in its fake may fail.
"""

import asyncio

from saga.engine.errors import describe_exception
from saga.engine.ports import ExternalCall
from saga.errors import ReturnNotAllowed
from saga.telemetry.events import DeadLettered, Escalated, Retrying, TelemetryEvent
from saga.testing.invariants.evidence import Violation

MISTAKES = (TypeError, AttributeError, NameError, NotImplementedError)
"""Exceptions that no external system raises on purpose. If a step raises one of them, the message becomes a dead
letter.
"""
_ENDS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""Exceptions that end a call from outside."""
_NOT_ALLOWED = describe_exception(ReturnNotAllowed(""))
"""Beginning of the failure reason of a handler that returned what its annotation does not allow."""


def describe_mistake(step: ExternalCall, why: Exception) -> str:
    """Describe an exception that a fake raised by mistake: the fake, the method, the handler and the exception."""
    fake = type(getattr(step.call, "__self__", None)).__name__
    method = getattr(step.call, "__name__", step.record.name)
    return f"BROKEN FAKE: {fake}.{method} raised {type(why).__name__} in handler {step.handler!r}: {why}"


def is_failed_check(why: BaseException) -> bool:
    """Return True if this is how a check of the test fails: an `assert`, or `pytest.fail`, which raises no
    `Exception`.
    """
    return isinstance(why, AssertionError) or not isinstance(why, (Exception, *_ENDS))


def find_wrong_return(moment: TelemetryEvent) -> Violation | None:
    """Return a violation if this telemetry event reports that a handler, compensation or deadline returned something
    that its annotation does not allow; otherwise `None`. The violation says what was returned and what is allowed.
    """
    match moment:
        case Retrying(saga=saga, error=reason):
            pass
        case DeadLettered(saga=saga, reason=reason) | Escalated(saga=saga, reason=reason):
            pass
        case _:
            return None
    if not reason.startswith(_NOT_ALLOWED):
        return None
    return Violation("as annotated", saga, None, reason.removeprefix(_NOT_ALLOWED))
