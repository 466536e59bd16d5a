"""Mistakes of fakes: exceptions that come from an error in the code of a fake, not from what it stands for."""

from saga.engine.ports import ExternalCall

MISTAKES = (TypeError, AttributeError, NameError, NotImplementedError)
"""Exceptions that no external system raises on purpose. A handler whose step raises one becomes a dead letter."""


def describe_mistake(step: ExternalCall, why: Exception) -> str:
    """Return which fake raised an exception, in which method, for which handler."""
    fake = type(getattr(step.call, "__self__", None)).__name__
    method = getattr(step.call, "__name__", step.record.name)
    return f"BROKEN FAKE: {fake}.{method} raised {type(why).__name__} in handler {step.handler!r}: {why}"
