"""Format durations as readable text."""

from datetime import timedelta


def describe_duration(time_s: float) -> str:
    """Return a duration as text.

    >>> describe_duration(900), describe_duration(90_061), describe_duration(0.25), describe_duration(86_400)
    ('15 minutes', '1 day 1 hour 1 minute 1 second', '0.25 seconds', '1 day')
    """
    left = timedelta(seconds=time_s)
    parts = []
    for unit, size in (("day", timedelta(1)), ("hour", timedelta(hours=1)), ("minute", timedelta(minutes=1))):
        count, left = divmod(left, size)
        parts += [f"{count} {unit}{'' if count == 1 else 's'}"] if count else []
    seconds = left.total_seconds()
    if seconds or not parts:
        parts.append(f"{seconds:g} second{'' if seconds == 1 else 's'}")
    return " ".join(parts)
