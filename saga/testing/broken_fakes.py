"""Detect mistakes in fakes: exceptions that come from a bug in the fake's own code, not from the external system that
it imitates.
"""

from saga.engine.ports import ExternalCall

MISTAKES = (TypeError, AttributeError, NameError, NotImplementedError)
"""Exceptions that no external system raises on purpose. If a step raises one of them, the message becomes a dead
letter.
"""


def describe_mistake(step: ExternalCall, why: Exception) -> str:
    """Describe which fake raised the exception, in which method, and for which handler."""
    fake = type(getattr(step.call, "__self__", None)).__name__
    method = getattr(step.call, "__name__", step.record.name)
    return f"BROKEN FAKE: {fake}.{method} raised {type(why).__name__} in handler {step.handler!r}: {why}"
