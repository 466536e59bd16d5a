"""SQLite adapter: an address names one file for each service, or one file for all services. Importing this module loads
no driver."""

import os
import re
import string
from collections.abc import Iterator, Sequence
from glob import escape, glob
from pathlib import Path

from saga.errors import NoStore
from saga.store.adapter import StoreAddress
from saga.store.port import Store
from saga.support.addresses import file_in, is_missing
from saga.support.clock import Clock
from saga.support.settings import ChosenSettings, Finding, Problem


class SqliteAdapter:
    """Description of SQLite for `saga.configuration.adapters`: see `saga.store.adapter`."""

    schemes = ("sqlite",)
    takes = "sqlite:///FILE"
    example = "sqlite:///file (relative) or sqlite:////folder/file (absolute)"
    options = None

    def check(self, address: str) -> None:
        sqlite_template(address)

    def problems(self, settings: ChosenSettings) -> Iterator[Problem]:
        yield from ()

    def create_store(self, settings: ChosenSettings, service: str, clock: Clock, *, readonly: bool = False) -> Store:
        from saga.store.sqlite.store import SqliteStore

        return SqliteStore(sqlite_path(settings.store, service), clock=clock, readonly=readonly)

    def store_address(self, settings: ChosenSettings, service: str) -> str:
        return f"sqlite:///{sqlite_path(settings.store, service)}"

    def find_stores(self, address: str) -> Sequence[StoreAddress]:
        return [StoreAddress(f"sqlite:///{file}", service, file) for file, service in files_of(address)]

    def missing_file(self, settings: ChosenSettings, service: str) -> Path | None:
        file = sqlite_path(settings.store, service)
        return file if is_missing(file) else None

    def report_probe(self, settings: ChosenSettings, about: str) -> Finding:
        return Finding("ok", about, "it writes, reads and removes; every write is on disk")

    def version_time_ms(self, cas: int) -> int | None:
        return None


SQLITE = SqliteAdapter()


def files_of(address: str) -> list[tuple[Path, str | None]]:
    """Return the files that match an address, each with its service; the service is `None` if only the file's content
    shows it.

    Raises `NoStore` if there are none, and `ValueError`.
    """
    template = str(Path(sqlite_template(address)))
    parts = template.split("{service}")
    if len(parts) == 1:
        return [(Path(template), None)]
    first, *rest = map(re.escape, parts)
    named = re.compile(f"{first}(?P<service>[a-z0-9-]+)" + "(?P=service)".join(rest))
    found = [(Path(path), match["service"]) for path in sorted(glob("*".join(map(escape, parts))))
             if (match := named.fullmatch(path)) and not os.path.isdir(path)]  # fmt: skip
    if not found:
        raise NoStore("there is no store to be read:", [_why_none(template, Path(f"{parts[0]}*").parent)])
    return found


def _why_none(template: str, folder: Path) -> str:
    """Return why no file matches a template. `folder`: the folder that contains the first part that differs."""
    try:
        os.scandir(folder).close()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as why:
        return f"{folder} cannot be listed ({why.strerror}): see which user may read it, and what is in it"
    return f"no file matches {template}; run a service first (`saga run`), or name its store with --store"


def sqlite_path(url: str, service: str) -> Path:
    """Return the path of a service's SQLite store; `{service}` in the URL is replaced by its name. Raises `ValueError`.

    >>> sqlite_path("sqlite:///.saga/{service}.db", "payment")
    PosixPath('.saga/payment.db')
    >>> sqlite_path("sqlite:////var/lib/saga/all.db", "payment")
    PosixPath('/var/lib/saga/all.db')
    """
    return Path(sqlite_template(url).replace("{service}", service))


def sqlite_template(url: str) -> str:
    """Return the path in the URL of SQLite stores, still with `{service}`. Raises `ValueError`."""
    path = file_in(url, "sqlite", "store")
    try:
        fields = {field for _, field, _, _ in string.Formatter().parse(path) if field is not None}
    except ValueError:
        fields = {"?"}
    if fields - {"service"}:
        raise ValueError("the only thing that can stand in braces is {service}")
    return path
