"""The stores that commands read: found, opened for reading only, and what is in them of sagas."""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from glob import escape, glob
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec import Raw

from saga import adapters
from saga.addresses import scheme_of
from saga.cli.telling import tell_trouble
from saga.clock import Clock, SystemClock
from saga.config import Settings
from saga.errors import ConfigurationError, NotAStore, SagaError, StoreBroken
from saga.names import ARCHIVES, PROGRESS
from saga.progress import history, spill
from saga.progress.document import UNREADABLE, Snapshot, decode, progress_key
from saga.progress.glance import Glance, glance
from saga.progress.timeline import History
from saga.store.port import Document, NewestFirst, Store

F = TypeVar("F", bound=Callable[..., Any])
SERVICE = "{service}"
LOOKED_AT_MAX = 20_000
"""Of a store that knows no order of time no more documents of a service are looked at to list the newest."""


@dataclass(frozen=True, slots=True)
class Source:
    """One service in one store."""

    service: str
    store: Store


class NoStore(ConfigurationError):
    """No file is where stores are looked for."""


class Unreadable(SagaError):
    """What a service keeps of a saga is not what it wrote, or was written by a newer version."""


def store_option(command: F) -> F:
    """The option `--store` that all reading commands have."""
    return click.option(
        "--store",
        "addresses",
        multiple=True,
        metavar="URL",
        help="A store to be read, sqlite:///FILE; {service} in it stands for any service. May be given several times. "
        "Without it: SAGA_STORE, by default sqlite:///.saga/{service}.db.",
    )(command)


def warn(what: object) -> None:
    """Tell of something that keeps a part of the answer from being given."""
    tell_trouble(what)


@asynccontextmanager
async def sources_of(addresses: Sequence[str], clock: Clock) -> AsyncIterator[list[Source]]:
    """Every service in the stores at `addresses`, or at the setting `SAGA_STORE`, by name.

    Nothing is created or changed. Raises `SagaError` if there is no store, or one cannot be read.
    """
    async with AsyncExitStack() as stack:
        sources = []
        for address in [a for a in addresses if a.strip()] or [Settings.from_environment().store]:
            if scheme_of(address).startswith("couchbase"):
                settings = Settings.from_environment(store=address)
                if SERVICE in address:
                    raise NoStore(
                        "there is no store to be read:",
                        [f"{address} is one of several, and nobody says of which services: name each with --store"],
                    )
                remote = await stack.enter_async_context(adapters.store_at(settings, "", clock, readonly=True))
                sources += [Source(name, remote) for name in await _services_in(remote)]
                continue
            for path, service in files_of(address):
                try:
                    store = await stack.enter_async_context(adapters.sqlite_at(path, clock, readonly=True))
                except NotAStore:
                    if service is None:
                        raise
                    continue  # a broker, say, that lies beside the stores
                services = [service] if service else await _services_in(store)
                sources += [Source(name, store) for name in services]
        yield sorted(sources, key=lambda source: source.service)


def files_of(address: str) -> list[tuple[Path, str | None]]:
    """The files that an address means, each with its service; `None` where only the content can tell.

    Raises `NoStore` if it means none.
    """
    template = str(Settings.store_path_of(address))
    parts = template.split(SERVICE)
    if len(parts) == 1:
        return [(Path(template), None)]
    first, *rest = map(re.escape, parts)
    named = re.compile(f"{first}(?P<service>[a-z0-9-]+)" + "(?P=service)".join(rest))
    found = [(Path(path), match["service"]) for path in sorted(glob("*".join(map(escape, parts))))
             if (match := named.fullmatch(path))]  # fmt: skip
    if not found:
        raise NoStore(
            "there is no store to be read:",
            [f"no file matches {template}; run a service first (`saga run`), or name its store with --store"],
        )
    return found


async def progresses(source: Source) -> AsyncIterator[tuple[str, Document]]:
    """The progress documents of a service, with their saga ids; damaged ones as they lie there, if the store can."""
    prefix, store = progress_key(source.service, ""), source.store
    found = store.newest(PROGRESS, prefix) if isinstance(store, NewestFirst) else store.scan(PROGRESS, prefix)
    async for key, document in found:
        yield key.removeprefix(prefix), document


@dataclass(frozen=True, slots=True)
class Seen:
    """A progress at a glance, or why it cannot be read."""

    source: Source
    saga: str
    progress: Glance | None
    damage: str = ""

    @property
    def key(self) -> str:
        return progress_key(self.source.service, self.saga)

    @property
    def rank(self) -> str:
        """What is newer ranks higher: by when its saga began; what says nothing of that ranks highest."""
        return (self.progress and self.progress.started) or "~"


def seen_in(source: Source, saga: str, document: Document) -> Seen:
    """A document at a glance."""
    try:
        return Seen(source, saga, glance(document.content))
    except SagaError as why:
        return Seen(source, saga, None, str(why))


async def seen_of(source: Source, saga: str) -> Seen | None:
    """What a service keeps of a saga, at a glance; `None` if it does not know it."""
    try:
        document = await document_of(source, saga)
    except Unreadable as why:
        return Seen(source, saga, None, str(why))
    return None if document is None else seen_in(source, saga, document)


async def newest_first(sources: Sequence[Source], prefix: str, *, kept: bool = False) -> AsyncIterator[Seen]:
    """The progresses of all these services whose saga id begins with `prefix`, newest saga first, as far as the stores
    know an order: each gives those first of which it heard last. `kept`: only those that never expire, where the store
    can tell.
    """
    streams = [_newest_of(source, prefix, kept) for source in sources]
    heads = [(head, stream) for stream in streams if (head := await anext(stream, None))]
    while heads:
        which = max(range(len(heads)), key=lambda i: heads[i][0].rank)
        found, stream = heads[which]
        yield found
        head = await anext(stream, None)
        if head is None:
            del heads[which]
        else:
            heads[which] = head, stream


async def _newest_of(source: Source, prefix: str, kept: bool) -> AsyncIterator[Seen]:
    whole, store = progress_key(source.service, prefix), source.store
    service = progress_key(source.service, "")
    if isinstance(store, NewestFirst):
        async for key, document in store.newest(PROGRESS, whole, kept=kept):
            yield seen_in(source, key.removeprefix(service), document)
        return
    found = list[tuple[str, str]]()
    async for key, document in store.scan(PROGRESS, whole):
        if len(found) == LOOKED_AT_MAX:
            warn(
                f"the store of {source.service} lists its documents by key only: looked at the first {LOOKED_AT_MAX}; "
                "name the beginning of an id with --prefix to see others"
            )
            break
        saga = key.removeprefix(service)
        found.append((seen_in(source, saga, document).rank, saga))
    for _, saga in sorted(found, reverse=True):
        seen = await seen_of(source, saga)
        if seen is not None:
            yield seen


async def document_of(source: Source, saga: str) -> Document | None:
    """What a service keeps of a saga. Raises `Unreadable` if it is damaged."""
    try:
        return await source.store.get(PROGRESS, progress_key(source.service, saga))
    except StoreBroken as why:
        raise Unreadable(f"saga {saga} in {source.service}: {why}") from why


def snapshot_of(source: Source, saga: str, document: Document) -> Snapshot:
    """The progress in a document. Raises `Unreadable`."""
    try:
        return decode(document.content)
    except SagaError as why:
        raise Unreadable(f"saga {saga} in {source.service}: {why}") from why


async def history_of(source: Source, saga: str, since: int = 0) -> History | None:
    """All transitions of a saga in a service, archived ones with them; `None` if the service does not know the saga.

    Archives are left alone when the progress itself reaches back to the transition `since`. Raises `Unreadable`.
    """
    document = await document_of(source, saga)
    if document is None:
        return None
    return await whole_history(source, snapshot_of(source, saga, document), since)


async def whole_history(source: Source, p: Snapshot, since: int = 0) -> History:
    """As `history_of`, of a progress that was read; with what its pages hold."""
    p = await _with_pages(source, p)
    if p.first <= since:
        return History(p, p.transitions)
    archives = dict[int, tuple[Raw, ...]]()
    # The progress was read before, so nothing can have moved to an archive unseen. An archive that the progress does
    # not know of yet repeats what the progress has. One that does not follow the one before is of an earlier saga that
    # had the same id.
    prefix = history.archive_key(source.service, p.saga, 0)[:-9]
    try:
        async for _, document in source.store.scan(ARCHIVES, prefix):
            archive = history.decode_archive(document.content)
            if archive.saga == p.saga and archive.first < p.first:
                archives[archive.first] = archive.transitions
    except (*UNREADABLE, StoreBroken) as why:
        raise Unreadable(f"an archive of saga {p.saga} in {source.service} cannot be read: {why}") from why
    archived = list[Raw]()
    while transitions := archives.pop(len(archived), ()):
        archived += transitions
    return History(p, (*archived, *p.transitions))


async def _with_pages(source: Source, p: Snapshot) -> Snapshot:
    """The progress as if it had no bounds. Raises `Unreadable`.

    Who works on the saga meanwhile takes messages out of pages, which then are removed: so where one is missing, the
    progress is read again, as long as it lists other pages than before.
    """
    while True:
        leaves = dict[str, bytes]()
        for key in (spill.page_key(p.service, p.saga, page) for page in p.pages):
            document = await source.store.get(ARCHIVES, key)
            if document is not None:
                leaves[key] = document.content
        if len(leaves) < len(p.pages) and (document := await document_of(source, p.saga)) is not None:
            now = snapshot_of(source, p.saga, document)
            if now.pages != p.pages:
                p = now
                continue
        try:
            return spill.whole(p, leaves, now_s=SystemClock().now_ms() // 1000)
        except (SagaError, *UNREADABLE) as why:
            raise Unreadable(f"a page of {p.saga} in {source.service} cannot be read: {why}") from why


async def _services_in(store: Store) -> list[str]:
    """The services whose progress is in a store, of which the address says nothing."""
    services = dict[str, None]()
    async for key, _ in store.scan(PROGRESS):
        services[key.partition("::")[0]] = None
    return list(services)
