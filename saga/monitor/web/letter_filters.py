"""Filters of dead letters. They are parsed from page addresses and forms, and applied to lists. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import get_args

from saga.ops.attention import AttentionItem
from saga.ops.letter_groups import Grouping, LetterRow, select_group

GROUPINGS: Mapping[Grouping, str] = {
    "reason": "reason",
    "exception": "exception class",
    "handler": "handler",
    "event": "event",
}
"""By what dead letters can be grouped, with the labels that the page shows."""


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Filter of dead letters. A dead letter has to match every field that is set."""

    text: str = ""
    """Part of the saga id, of the reason, of the event type or of the dead letter's id."""
    service: str = ""
    blame: str = ""
    """Who can fix the failure."""
    what: str = ""
    """Kind: dead letter, escalation or failing run."""
    now: str = "open"
    """`open` selects only what needs a person. Any other text selects everything."""
    by: Grouping = "reason"
    group: str = ""
    """Digest of the group to which the dead letters belong."""

    @property
    def fields(self) -> dict[str, str]:
        """The filter as the fields of an address or a form."""
        return {"class" if name == "blame" else name: value for name, value in asdict(self).items()}

    @property
    def is_narrow(self) -> bool:
        """True if the filter leaves out dead letters that need a person."""
        return bool(self.text or self.service or self.blame or self.what or self.group)

    def select(self, rows: Iterable[LetterRow]) -> Sequence[LetterRow]:
        """Return the dead letters that match, in the same order."""
        found = [row for row in rows if self._matches(row.item)]
        return select_group(found, self.by, self.group) if self.group else found

    def _matches(self, each: AttentionItem) -> bool:
        letter, text = each.letter, self.text
        return (
            (self.now != "open" or each.is_open)
            and self.service in ("", letter.service)
            and self.blame in ("", letter.blame)
            and self.what in ("", letter.what)
            and (
                not text or any(text in (value or "") for value in (letter.saga, letter.reason, letter.type, letter.id))
            )
        )


def parse_letter_filter(asked: Mapping[str, str]) -> LetterFilter:
    """Parse a filter from an address or a form. If the grouping is unknown, the reason is used."""
    by = asked.get("by", "")
    return LetterFilter(
        text=asked.get("text", ""),
        service=asked.get("service", ""),
        blame=asked.get("class", ""),
        what=asked.get("what", ""),
        now=asked.get("now", "open") or "open",
        by=next((each for each in get_args(Grouping) if each == by), "reason"),
        group=asked.get("group", ""),
    )


def is_open_escalation(item: AttentionItem) -> bool:
    """Return whether an item is an escalation that still needs a person, because its compensation keeps failing or
    calls have to be corrected."""
    return item.letter.what == "escalation" and (
        item.state == "goes on" or (item.state == "-" and bool(item.letter.calls))
    )
