"""Groups of dead letters with the same cause. They can be grouped by reason, by exception, by handler or by event.
Pure functions."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Literal, NamedTuple

from saga.ops.attention import Attention, AttentionItem

Grouping = Literal["reason", "exception", "handler", "event"]
"""What the dead letters of a group have in common, besides their kind and their service."""
PATTERN_MAX = 200
"""Maximum length in characters of the part of a reason by which dead letters are grouped."""
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]{0,99})(?:: |$)")
_VARIES = re.compile(
    r"""(?P<quoted>"[^"]*"|'[^']*')"""
    r"""|(?P<id>\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}\b|\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b)"""
    r"""|(?P<number>[0-9]+(?:[.,:][0-9]+)*)"""
)


class LetterCause(NamedTuple):
    """The cause of a dead letter, without the details that differ from saga to saga."""

    what: str
    service: str
    handler: str
    event: str
    exception: str
    """Class of the exception that was raised; empty if the reason names none."""
    reason: str
    """The reason without ids, numbers and quoted values."""


class LetterRow(NamedTuple):
    """A dead letter, an escalation or a failing run, with its cause."""

    item: AttentionItem
    cause: LetterCause


@dataclass(frozen=True)
class LetterTable:
    """Everything that may need an operator, newest first, with indexes."""

    rows: Sequence[LetterRow]
    more: bool = False
    """True if there are more than could be read."""

    @classmethod
    def of(cls, found: Attention) -> "LetterTable":
        """Make a table of what `find_attention` has found."""
        return cls([LetterRow(each, find_cause(each)) for each in found.items], found.more)

    @cached_property
    def items(self) -> Sequence[AttentionItem]:
        return [row.item for row in self.rows]

    @cached_property
    def by_key(self) -> Mapping[tuple[str, str], AttentionItem]:
        """The items by service and id."""
        return {(each.letter.service, each.letter.id): each for each in reversed(self.items)}

    @cached_property
    def by_saga(self) -> Mapping[str, Sequence[AttentionItem]]:
        """Items of each saga, newest first."""
        found: dict[str, list[AttentionItem]] = {}
        for each in self.items:
            if each.letter.saga:
                found.setdefault(each.letter.saga, []).append(each)
        return found


@dataclass(slots=True)
class LetterGroup:
    """Dead letters with the same cause."""

    key: tuple[str, ...]
    newest: AttentionItem
    cause: LetterCause
    """The cause of the newest dead letter."""
    count: int = 0
    blocking: int = 0
    """Number of dead letters that block a saga, so that they can be replayed or discarded."""
    open: int = 0
    """Number of items that need a person."""
    reasons: int = 0
    """Number of different reasons. Reasons that differ only in ids, numbers and quoted values count as one."""
    is_uniform: bool = True
    """True if the reasons are exactly equal, including ids, numbers and quoted values."""
    first: str = ""
    last: str = ""

    @property
    def reason(self) -> str:
        """The reason for display: complete if all reasons are equal, otherwise without ids, numbers and quoted values.
        A long reason is cut."""
        whole = self.newest.letter.reason
        if not self.is_uniform:
            return self.cause.reason
        return whole if len(whole) <= PATTERN_MAX else f"{whole[:PATTERN_MAX]}..."

    @property
    def digest(self) -> str:
        """A short name of the group, for addresses of pages."""
        return digest_group(self.key)


def find_cause(item: AttentionItem) -> LetterCause:
    """Return the cause of a dead letter."""
    letter = item.letter
    named = _EXCEPTION.match(letter.reason)
    return LetterCause(
        what=letter.what,
        service=letter.service,
        handler=letter.handler or "",
        event=letter.type or "",
        exception=named[1] if named else "",
        reason=generalize(letter.reason),
    )


def generalize(reason: str) -> str:
    """Replace ids, numbers and quoted values in a reason, so that the same failure of two sagas gives the same text.

    >>> generalize("Declined: card 'x-1' of order-17 has 9.80 left")
    "Declined: card '...' of order-# has # left"
    >>> generalize("no answer to 7f3a9c2e41d0 at deadbeef")
    'no answer to * at deadbeef'
    """
    return _VARIES.sub(_replace_varying, reason[: 4 * PATTERN_MAX])[:PATTERN_MAX]


def _replace_varying(found: re.Match[str]) -> str:
    text = found[0]
    return f"{text[0]}...{text[0]}" if found["quoted"] else "*" if found["id"] else "#"


def make_group_key(cause: LetterCause, by: Grouping) -> tuple[str, ...]:
    """Return the values by which dead letters are grouped. All dead letters of a group have the same ones."""
    begin = (by, cause.what, cause.service)
    match by:
        case "reason":
            return (*begin, cause.handler, cause.reason)
        case "exception":
            return (*begin, cause.handler, cause.exception)
        case "handler":
            return (*begin, cause.handler)
        case "event":
            return (*begin, cause.event)


def digest_group(key: Sequence[str]) -> str:
    """Return a short name for a group, made from the group's key."""
    return sha256("\0".join(key).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def group_letters(rows: Iterable[LetterRow], by: Grouping) -> list[LetterGroup]:
    """Group dead letters. The group with the most items that need a person comes first.

    `rows` must be sorted, newest first.
    """
    groups: dict[tuple[str, ...], LetterGroup] = {}
    reasons: dict[tuple[str, ...], set[str]] = {}
    for item, cause in rows:
        key = make_group_key(cause, by)
        group = groups.get(key)
        if group is None:
            group = groups[key] = LetterGroup(key, item, cause, last=item.letter.time)
            reasons[key] = set()
        group.count += 1
        group.open += item.is_open
        group.blocking += item.state == "blocks"
        group.first = item.letter.time or group.first
        group.is_uniform = group.is_uniform and item.letter.reason == group.newest.letter.reason
        reasons[key].add(cause.reason)
    for key, group in groups.items():
        group.reasons = len(reasons[key])
    return sorted(groups.values(), key=lambda each: (-each.open, -each.count, each.key))


def select_group(rows: Iterable[LetterRow], by: Grouping, digest: str) -> list[LetterRow]:
    """Return the dead letters of the group with this digest."""
    known: dict[tuple[str, ...], bool] = {}
    found = []
    for row in rows:
        key = make_group_key(row.cause, by)
        if key not in known:
            known[key] = digest_group(key) == digest
        if known[key]:
            found.append(row)
    return found
