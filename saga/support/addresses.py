"""Parse and check the URLs of brokers, stores and other servers. Each function raises `ValueError` with a message that
says what is valid."""

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

_PLAIN = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:(?=/))?(?:\[[0-9a-fA-F:.]*\]|:[0-9]+(?![^,/])|[\w ./,{}\\~+-])*")
"""Form of an address without secrets: it contains no `@`, `?`, `%` or `=`, and a colon only after the scheme, inside
brackets and before a port."""
HOST = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def scheme_of(url: str) -> str:
    """Return the scheme of a URL: the part before `://`; empty if there is none.

    >>> scheme_of("kafka://broker-1:9092")
    'kafka'
    """
    return url.partition("://")[0] if "://" in url else ""


def is_plain(url: str) -> bool:
    """Return whether an address may be shown, because no part of it can be a user, a password or an option.

    >>> is_plain("kafka://broker-1:9092,[::1]:9092"), is_plain("sqlite:///.saga/{service}.db")
    (True, True)
    >>> is_plain("kafka://ada:secret@broker-1"), is_plain("kafka://ada:secret"), is_plain("redis://h/?password=x")
    (False, False, False)
    """
    return _PLAIN.fullmatch(url) is not None


def check_http(text: str) -> None:
    """Check an address to listen on, which has the form host:port, such as `127.0.0.1:8080`."""
    host, _, port = text.rpartition(":")
    if not host or "@" in host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError("it must be host:port, as in 127.0.0.1:8080 or 0.0.0.0:8080")


def check_connect(text: str) -> None:
    """Check the address of a Kafka Connect: a URL without user, password or query."""
    if scheme_of(text) not in ("http", "https") or not text.partition("://")[2].strip("/") or not is_plain(text):
        raise ValueError("it must be http://HOST:PORT or https://HOST:PORT, and an address alone")


def check_registry(text: str) -> None:
    """Check the address of a schema registry: a URL without user, password or query."""
    if scheme_of(text) not in ("http", "https") or not text.partition("://")[2].strip("/"):
        raise ValueError("it must be https://HOST:PORT/PATH or http://HOST:PORT/PATH")
    if not is_plain(text):
        raise ValueError("it must be an address alone; name the user and the password by SAGA_REGISTRY_USER and others")


def check_hosts(text: str) -> None:
    """Check host names separated by commas, each without a port.

    >>> check_hosts("monitor.example, sagas.example")
    """
    if wrong := [name.strip() for name in text.split(",") if _NAME.fullmatch(name.strip()) is None]:
        raise ValueError(f"{wrong[0]!r} is no name of a host: give names alone, without scheme and port")


def check_docs(text: str) -> None:
    """Check the address of the documentation: a web address in which `{page}` stands for the path of the page.

    >>> check_docs("https://docs.example/{page}.html")
    """
    if not text.startswith(("https://", "http://")) or "{page}" not in text:
        raise ValueError("it is a web address with {page} for the path of the page")


COMMAND = "command:"
"""Prefix of a hook that is a command."""


def check_hook(text: str) -> None:
    """Check a hook: a URL, or a command with its arguments."""
    if text.startswith(COMMAND):
        try:
            words = shlex.split(text.removeprefix(COMMAND))
        except ValueError as why:
            raise ValueError(f"its command cannot be read: {why}") from None
        if not words:
            raise ValueError("name the command behind command:")
    elif scheme_of(text) not in ("http", "https"):
        raise ValueError("it must be https://HOST/PATH, http://HOST/PATH or command:PATH ARGUMENTS")
    else:
        _check_hook_url(text)


def _check_hook_url(text: str) -> None:
    """Check that `urllib` can call a URL. The errors do not show the URL, because its path or query may be a secret."""
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError:  # its own message quotes parts of the URL
        raise ValueError("its host or its port is invalid; a port is a number from 1 to 65535") from None
    if "@" in url.netloc:
        raise ValueError("it must have no user and no password: give a key in the path or query, or sign the calls")
    if not host or port == 0:
        raise ValueError("it must be https://HOST:PORT/PATH with a host, and a port from 1 to 65535 or none")
    if re.search(r"[\x00-\x20\x7f]", text) or not f"{url.path}{url.query}".isascii():
        raise ValueError("percent-encode its spaces, control characters, and what is not ASCII")


def file_in(url: str, scheme: str, what: str) -> str:
    """Return the path of the file in the URL of a store or a broker. Raises `ValueError`.

    Three slashes begin a path relative to the current folder, four an absolute one.
    """
    begins, separator, rest = url.partition("://")
    if not separator or begins != scheme:
        raise ValueError(f"it is no address of a file; use {scheme}:///file (relative) or {scheme}:////folder/file")
    if not rest.startswith("/"):
        right = f"{scheme}:///{rest}" if is_plain(url) else f"{scheme}:///file"
        raise ValueError(f"a file is meant, so three slashes follow the colon: {right}")
    path = rest[1:]
    first, inside, _ = path.partition("/")
    if inside and first and Path(f"/{first}").is_dir() and not Path(first).exists():
        wanted = f"{scheme}:////{path}" if is_plain(url) else f"{scheme}:////folder/file"
        raise ValueError(
            f"three slashes begin a path that is relative to the current folder, which has no {first}; if /{first} is "
            f"meant, it takes four: {wanted}; if not, make the folder {first} here first"
        )
    if not path or path.endswith("/"):
        raise ValueError(f"the name of a file is missing, as in {scheme}:///.saga/{what}.db")
    return path


def is_missing(path: Path) -> bool:
    """Return whether there is no file at a path.

    A file whose folder this user may not read counts as existing, because opening it then reports the reason.
    """
    try:
        path.stat()
    except ValueError:  # no file can have this name, for example because of a null byte
        return True
    except OSError as why:
        return isinstance(why, FileNotFoundError | NotADirectoryError)
    return False
