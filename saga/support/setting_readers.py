"""Readers of settings: how the text of each becomes its value, and what there is to say of it to people."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from saga.support.addresses import is_plain

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SettingReader:
    """Reader of one setting's text."""

    read: Callable[[str], object]
    """Function from its text, without spaces around it, to its value. Raises `ValueError` saying what would be
    right."""
    takes: str
    """Value to be given, in words, with unit and bounds."""
    may_show: Callable[[str], bool] = lambda _: True
    """True if a text that cannot be used may be repeated to people and logs: not where it may hold a secret."""


def number(kind: type[T], least: int, most: int, unit: str) -> SettingReader:
    """Reader of a number of something, between two bounds."""
    what = f"{'a whole number' if kind is int else 'a number'} of {unit} from {least} to {most}"

    def read(text: str) -> T:
        try:
            value = msgspec.convert(text, kind, strict=False)
        except msgspec.ValidationError:
            raise ValueError(f"it must be {what}") from None
        if not least <= float(str(value)) <= most:
            raise ValueError(f"it must be {what}")
        return value

    return SettingReader(read, what)


def word(*words: str) -> SettingReader:
    """Reader of one of these words, however it is capitalised."""
    by_lower = {word.lower(): word for word in words}

    def read(text: str) -> str:
        if text.lower() not in by_lower:
            raise ValueError(f"it must be one of: {', '.join(words)}")
        return by_lower[text.lower()]

    return SettingReader(read, f"one of: {', '.join(words)}")


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("true", "false", "yes", "no", "1", "0"):
        raise ValueError("it must be true or false")
    return text.lower() in ("true", "yes", "1")


def text(what: str) -> SettingReader:
    """Reader of any text."""
    return SettingReader(str, what)


def secret(what: str) -> SettingReader:
    """Reader of a text that nobody is shown."""
    return SettingReader(str, what, lambda _: False)


def address(check: Callable[[str], object], what: str) -> SettingReader:
    """Reader of a URL, which is shown only where nothing in it can be a password."""
    return checked(check, what, is_plain)


def checked(
    check: Callable[[str], object], what: str, may_show: Callable[[str], bool] = lambda _: True
) -> SettingReader:
    """Reader of a text that `check` does not mind."""

    def read(text: str) -> str:
        check(text)
        return text

    return SettingReader(read, what, may_show)


def _readable(path: str) -> str:
    try:
        with Path(path).open("rb"):
            return path
    except FileNotFoundError:
        raise ValueError("there is no such file") from None
    except (OSError, ValueError) as why:  # a ValueError for what can be no path
        reason = why.strerror if isinstance(why, OSError) else str(why)
        raise ValueError(f"it cannot be read: {reason}") from None


def _read_unencrypted(path: str) -> str:
    if b"ENCRYPTED" in Path(_readable(path)).read_bytes():
        raise ValueError("the key is encrypted, and the driver has no way to be given a password: give it decrypted")
    return path


def _folder(path: str) -> str:
    if "/" not in path:
        raise ValueError("it must be the path of a folder, with a / in it, as in /var/run/keys or ./keys")
    return path


YES_OR_NO = SettingReader(_yes_or_no, "true or false")
"""Reader of true or false."""
FILE = SettingReader(_readable, "path of a file")
"""Reader of the path of a file that this process can open."""
SECRET_FILE = SettingReader(_readable, "path of a file", lambda _: False)
"""Reader of the path of a file with a secret. It is not shown: somebody may have given the secret itself."""
PLAIN_KEY_FILE = SettingReader(_read_unencrypted, "path of a file, with a key that is not encrypted", lambda _: False)
"""Reader of the path of a file with a key, for a driver that opens no encrypted one."""
FOLDER = SettingReader(_folder, "path of a folder, with a / in it", lambda _: False)
"""Reader of the path of a folder, which need not be there yet. Not shown, for the same reason."""
