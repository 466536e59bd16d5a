"""Manifest of a service: what it hears, says, undoes and waits for, as a JSON file that other repositories can read."""

import re
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from saga.declarations.values import ReactionKind
from saga.errors import ConfigurationError
from saga.support.printable import quoted

FORMAT: Final = 1
"""Number of the form that is written; another toolkit may write a newer one, which is refused."""
ALL: Final = "all"
_SERVICE = re.compile(r"[a-z][a-z0-9-]{0,63}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TEXTS = re.compile(r'\[\s+("[\w.]+"(?:,\s+"[\w.]+")*)\s+\]')
"""List of names over several lines."""

Fields: TypeAlias = tuple[str, ...] | Literal["all"]
"""Fields that may be read, sorted; `address.street` is one of a nested record, `address` all of it."""


class Emitted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Event that a service may say."""

    contract: str
    version: int
    """Version of the class that it is said or read as."""
    topic: str
    key: str


class Consumed(Emitted, frozen=True, kw_only=True, omit_defaults=True):
    """Event that a service takes, from the log or from its own progress, or that closes a deadline."""

    fields: Fields
    because: str = ""
    """Reason why all fields count as read; empty if they are told apart."""
    upcasts: tuple[int, ...] = ()
    """Older versions that an upcaster of the service reads."""


class Told(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Handler, compensation or deadline, as its declaration says."""

    name: str
    kind: ReactionKind
    ids: str
    """Its part of the ids of events and of the keys that it hands to the outside: renamed, both are others."""
    takes: tuple[tuple[str, ...], ...]
    """For each event parameter the contracts that it takes, any of them; several parameters are a fan-in."""
    optional: tuple[str, ...] = ()
    """Contracts that may be absent."""
    later: bool = False
    """True if it may go on another time."""
    until: tuple[str, ...] = ()
    """Contracts that it may wait for with `Later`."""
    within_s: float | None = None
    """Time of a deadline."""
    unless: tuple[str, ...] = ()
    """Contracts that close a deadline."""
    undoes: str | None = None
    """Handler that a compensation undoes."""
    took: tuple[tuple[str, ...], ...] = ()
    """For each parameter of a compensation for what that handler took, and that has to be there, the contracts."""
    emits: tuple[str, ...] = ()
    repeats: tuple[str, ...] = ()
    """Contracts that may come several times in a saga, each a run of its own."""
    version: int = 1
    """Version under which its runs begin."""
    keys: tuple[str, ...] | None = ()
    """Names given to `saga.idempotency_key` as plain text in its code; `None` if that cannot be seen."""
    resources: tuple[str, ...] = ()
    doc: str = ""

    @property
    def hears(self) -> tuple[str, ...]:
        """Contracts that reach it or close it."""
        return (*(name for part in (*self.takes, *self.took) for name in part), *self.optional, *self.unless)


class State(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State that a service keeps of a saga."""

    type: str
    version: int
    """One more than there are migrations."""
    fields: dict[str, str]
    """Types of its fields by name, as annotated."""


class Manifest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Declarations of one service, for others to read."""

    format: int
    service: str
    was: str = ""
    """Name under which all of it is stored, if that is another one: the owner in its contracts, too."""
    start: str = ""
    """Place where it begins in a topic that it has never read: `beginning`, `now`, or a time; empty: nobody said."""
    doc: str = ""
    kind: str
    """Name of the key field of all its events."""
    retention_s: float
    """Seconds for which a finished saga is known."""
    consumes: tuple[Consumed, ...]
    emits: tuple[Emitted, ...]
    reactions: tuple[Told, ...]
    state: State | None = None
    resources: dict[str, str] = {}
    """Resources by name, each with the type that it gives."""
    documents: dict[str, str] = {}
    """Business documents by collection, each with its class."""
    changes: dict[str, str] = {}
    """Collections of documents whose changes are taken, by the name under which reactions take them."""

    @property
    def stored(self) -> str:
        """Name under which all of it is stored."""
        return self.was or self.service

    def reaction(self, name: str) -> Told | None:
        """Reaction of that name, if there is one."""
        return next((each for each in self.reactions if each.name == name), None)

    def consumed(self, contract: str) -> Consumed | None:
        """Use of a contract, if it is consumed."""
        return next((each for each in self.consumes if each.contract == contract), None)

    @property
    def emitted(self) -> frozenset[str]:
        """Contracts that it may say."""
        return frozenset(each.contract for each in self.emits)


def written(manifest: Manifest) -> str:
    """The text of its file: indented, in a fixed order, so that a change is a small difference."""
    indented = msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=2).decode()
    return _TEXTS.sub(lambda texts: f"[{' '.join(texts[1].split())}]", indented) + "\n"


def read(text: str, place: str) -> Manifest:
    """Read a manifest, which others may have written. `place`: its file, for messages. Raises `ConfigurationError`."""
    try:
        given: Any = msgspec.json.decode(text)
        number = given.get("format") if isinstance(given, dict) else None
        if type(number) is int and number > FORMAT:
            raise _unusable(place, [f"is of format {number}; this toolkit reads {FORMAT}: use a newer one"])
        manifest = msgspec.convert(given, Manifest)
    except (ValueError, RecursionError) as why:
        raise _unusable(place, [f"is no manifest: {why}; have `saga manifest --write` make it"]) from why
    if problems := _odd(manifest):
        raise _unusable(place, problems)
    return manifest


def _odd(manifest: Manifest) -> list[str]:
    """Names in it that nothing can have: pages and messages are made of them."""
    services = (manifest.service, manifest.stored)
    problems = [f"{quoted(name)} is no name of a service" for name in services if not _SERVICE.fullmatch(name)]
    reactions = manifest.reactions
    events: tuple[Emitted, ...] = (*manifest.consumes, *manifest.emits)
    names = {
        *(each.contract for each in events),
        *(each.key for each in events),
        *(name for each in reactions for name in (*each.hears, *each.until, *each.emits)),
        *(each.name for each in reactions),
        *(each.undoes for each in reactions if each.undoes is not None),
    }
    problems += [
        f"{quoted(name)} is no name of an event, a field or a function" for name in sorted(names - _good(names))
    ]
    topics = {each.topic for each in events}
    problems += [f"{quoted(topic)} is no name of a topic" for topic in sorted(topics) if not _TOPIC.fullmatch(topic)]
    return problems


def _good(names: set[str]) -> set[str]:
    return {name for name in names if _NAME.fullmatch(name)}


def _unusable(place: str, problems: list[str]) -> ConfigurationError:
    return ConfigurationError(f"{place} cannot be used:", problems)
