"""Mistakes in the code of handlers and fakes that a world names: a handler whose return value its annotation does not
allow, and a fake that raises because of an error of its own, not because of what it stands for. Also the checks that a
test makes in its fakes.
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
"""Beginning of the reason of a failure for which a handler is to blame that returned what its annotation forbids."""


def describe_mistake(step: ExternalCall, why: Exception) -> str:
    """Describe which fake raised the exception, in which method, and for which handler."""
    fake = type(getattr(step.call, "__self__", None)).__name__
    method = getattr(step.call, "__name__", step.record.name)
    return f"BROKEN FAKE: {fake}.{method} raised {type(why).__name__} in handler {step.handler!r}: {why}"


def is_failed_check(why: BaseException) -> bool:
    """Return True if this is how a check of the test fails: an `assert`, or `pytest.fail`, which raises no
    `Exception`.
    """
    return isinstance(why, AssertionError) or not isinstance(why, (Exception, *_ENDS))


def find_wrong_return(moment: TelemetryEvent) -> Violation | None:
    """Return what a handler, compensation or deadline returned and what its annotation allows, if this telemetry event
    reports an attempt that failed because of it.
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
