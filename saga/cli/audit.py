"""`saga audit`: what people have done to a service, who has, when and why, and what shows it."""

import asyncio

import click
from msgspec.structs import asdict

from saga.cli.options import LIMIT_MAX, deployment_options, pack_options, since_ms
from saga.cli.printing import tell, tell_json, tell_trouble
from saga.messaging import controls
from saga.ops.audit import KINDS, AuditEntry, AuditFilter, read_audit
from saga.ops.selection import Deployment
from saga.support.clock import SystemClock


def _make_filter(kinds: tuple[str, ...], saga: str | None, who: str | None, since: str | None) -> AuditFilter:
    from_ms = 0 if since is None else since_ms("--since", since, SystemClock())
    return AuditFilter(kinds=kinds, saga=saga, who=who, since_ms=from_ms)


@click.command()
@click.argument("service")
@pack_options(
    "asked",
    _make_filter,
    click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only this kind. May be repeated."),
    click.option("--saga", metavar="ID", help="Only what was done about this saga."),
    click.option("--who", help="Only what this operator has done."),
    click.option("--since", metavar="TIME", help="Only from then on: 90s, 30m, 2h, 3d ago, or RFC 3339."),
)
@click.option(
    "--limit", type=click.IntRange(1, LIMIT_MAX), default=1000, show_default=True, help="At most so many, the newest."
)
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line for each act, instead of text.")
def audit(service: str, asked: AuditFilter, limit: int, deployment: Deployment, as_json: bool) -> None:
    """Print what operators have changed in a service, and check the record.

    Of SERVICE, oldest first: when, what, who, why, what became of it, and what shows that. Switched are flags, pauses,
    limits and routes, moved are positions.

    Switches stand in the service's book, and what became of a command in the history of its saga (`history`). Both are
    chains: an entry that was changed, added or removed in between shows. Compare the last digest of the book with one
    that you noted elsewhere, to see that none was removed at the end.

    Moves of positions, and commands that no history tells of (any more), are shown by a topic alone (`topic`): whoever
    may write there can have made them. What is removed at the beginning of a topic is found, but not what it said. Who
    somebody is the broker knows, who asks for a password; `--who` is the name that was given.

    \b
    Exit code 0: printed, and nothing speaks against it.
    Exit code 1: it was tampered with, or may not be all of it; the reason is on standard error.
    Exit code 2: no store, or one that cannot be read.
    """
    found = asyncio.run(read_audit(service, deployment, asked))
    for act in found.entries[-limit:]:
        if as_json:
            tell_json(_in_json(act))
        else:
            tell(_line(act))
    if not as_json:
        if len(found.entries) > limit:
            tell(f"and {len(found.entries) - limit} older: see --limit")
        book = found.book
        tell(f"the book has {len(book.entries)} switches, the last digest is {controls.digest_of(book)}")
    for note in found.notes:
        tell_trouble(note)
    for reason in found.wrong:
        tell_trouble(reason)
    if found.wrong:
        raise click.exceptions.Exit(1)


def _in_json(act: AuditEntry) -> dict[str, object]:
    told = {name: value for name, value in asdict(act).items() if name != "entry"}
    if act.entry is None:
        return told
    return asdict(act.entry) | told | {"switch": asdict(act.entry.switch)}


def _line(act: AuditEntry) -> str:
    return f"{act.time}  {act.what}  {act.who or '(not known)'}: {act.why}  {act.became} ({act.shown_by})"
