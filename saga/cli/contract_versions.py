"""Commands for versions of contracts: a first one, the next one, what changed between two, and which are released."""

from pathlib import Path
from typing import Any

import click

from saga.choreography.consumers import affected
from saga.choreography.folder import FOLDER, manifests_in
from saga.cli.contract_consumers import consumers_as_json, tell_consumers
from saga.cli.contract_problems import broken_releases, folder_of, shown
from saga.cli.printing import tell, tell_json
from saga.contracts.checks import RELEASED_FILE, counted, find_incompatible, lint_version, read_released
from saga.contracts.checks import release as write_released
from saga.contracts.compatibility import CompatibilityFinding, SchemaChange, list_changes, promised_directions
from saga.contracts.contract import Version
from saga.contracts.library import Library, find_folder
from saga.contracts.loading import make_version, read_version
from saga.contracts.schema_parser import KINDS, format_schema, make_first_version, parse_field
from saga.errors import ContractError, DeclarationError

_ANY = "any.py"


@click.command()
@click.argument("place", metavar="TOPIC/NAME")
@click.option("--owner", required=True, help="Name of the service that emits it.")
@click.option("--key", required=True, help="Field of the saga id, which is the name of the kind of saga: order_id.")
@click.option("--doc", required=True, help="What happened, in a sentence.")
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME:TYPE:DESCRIPTION",
    help=f"A field beside the key, as quantity:int:How many of it. Types: {KINDS}; [] behind one for many, ? for what "
    "may be absent.",
)
@click.option("--starts", is_flag=True, help="It begins a saga.")
@click.option("--outcome", type=click.Choice(["success", "failure"]), help="It ends a saga.")
@click.option("--produced-externally", is_flag=True, help="Clients, and services that do not own it, may publish it.")
@click.option("--consumed-externally", is_flag=True, help="Consumers outside of this repository read it.")
def new(place: str, doc: str, fields: tuple[str, ...], key: str, **terms: Any) -> None:
    """Write the first version of a contract: contracts/TOPIC/NAME.v1.avsc.

    \b
    saga contracts new orders/OrderShipped --owner order --key order_id --doc "The goods are on their way." \\
        --field "tracking:string:Where to ask for them."
    """
    topic, slash, name = place.partition("/")
    if not (topic and slash and name) or "/" in name:
        raise click.UsageError(f"{place!r} is not TOPIC/NAME, as orders/OrderPlaced")
    try:
        parts = [parse_field(text) for text in fields]
    except ValueError as why:
        raise click.UsageError(str(why)) from why
    id_ = {"name": key, "type": "string", "doc": f"The {key.removesuffix('_id')}, and with it the saga."}
    given = {"doc": doc, "topic": topic, "key": key, **terms}
    for attribute, option in (("produced_by", "produced_externally"), ("consumed_by", "consumed_externally")):
        given[attribute] = "external" if given.pop(option) else None
    schema = make_first_version(name, given, [id_, *parts])
    folder, path = _folder(), f"{topic}/{name}.v1"
    problems = lint_version(make_version(schema, path, name, 1))
    if problems:
        raise click.UsageError("\n".join(str(problem) for problem in problems))
    file = folder / f"{path}.avsc"
    if file.exists():
        raise click.UsageError(f"{file} is there already; the next version of it: saga contracts bump {name}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(format_schema(schema), "utf-8")
    try:
        Library.load(folder)
    except ContractError:
        file.unlink()
        raise
    tell(f"{_from_here(file)} written", f"next: saga contracts generate MODULE {name}")


@click.command()
@click.argument("name")
def bump(name: str) -> None:
    """Begin the next version of a contract: a copy of its newest one, to be changed."""
    library = _library()
    contract = library.contracts.get(name)
    if contract is None:
        raise click.UsageError(f"there is no contract {name} in {library.folder}")
    newest, known = contract.newest, read_released(library.folder)
    if known is not None and newest.path not in known:
        tell(f"{newest.path} is not released: change it as it is, nobody relies on it yet", err=True)
        raise click.exceptions.Exit(1)
    old = library.folder / f"{newest.path}.avsc"
    file = old.with_name(f"{name}.v{newest.number + 1}.avsc")
    file.write_text(old.read_text("utf-8"), "utf-8")
    tell(
        f"{_from_here(file)} written, as v{newest.number} is; change it, and then:",
        f"  saga contracts diff {name}.v{newest.number} {name}.v{newest.number + 1}",
        "  saga contracts check",
        "  saga contracts generate",
    )


@click.command()
def release() -> None:
    """Say that all versions there are now are released: they may not change any more, nor go.

    Writes contracts/released.json, with a digest of each, to be committed; descriptions do not count. From then on
    `saga contracts check` tells what has changed. Exits with 1, and writes nothing, if versions do not fit each other,
    or a released one is not what it was.
    """
    library = _library()
    problems = [*find_incompatible(library.contracts.values()), *broken_releases(library)]
    for problem in shown(library.folder, problems):
        tell(*str(problem).split("\n"), err=True)
    if problems:
        raise click.exceptions.Exit(1)
    names = write_released(library.folder, library.by_path.values())
    for path in names:
        tell(f"{path} is released")
    tell(f"{counted(len(library.by_path), 'version')} in {_from_here(library.folder / RELEASED_FILE)}")


@click.command()
@click.argument("old")
@click.argument("new_", metavar="NEW")
@click.option(
    "--manifests",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the manifests of all services, which say who reads what. By default manifests/ beside contracts/.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(old: str, new_: str, manifests: Path | None, as_json: bool) -> None:
    """Show what changed between two versions, field by field, what it breaks in which direction, and for whom.

    OLD and NEW are versions of the contracts here (OrderPlaced.v1), or files (before/OrderPlaced.v1.avsc). For whom
    is told by manifests: each service that hears the contract, with the fields that its code may read. Exits with 1 if
    something breaks what NEW promises of OLD.

    \b
    saga contracts diff OrderPlaced.v1 OrderPlaced.v2
    """
    one, other = _version(old), _version(new_)
    if one.name != other.name:
        raise click.UsageError(f"{old} and {new_} are two contracts: {one.name} and {other.name}")
    changes = list_changes(one, other)
    promised = [
        way for way in promised_directions(other.compatible) if way == "forward" or one.number not in other.upcasts
    ]
    broken = [f for change in changes for way in promised for f in getattr(change, way) if f.breaks]
    place = manifests or _folder().parent / FOLDER
    heard = affected(changes, one, other, manifests_in(place).values())
    if as_json:
        told = {"old": one.path, "new": other.path, "compatible": other.compatible, "changes": _json(changes)}
        tell_json({**told, "consumers": consumers_as_json(heard)})
    else:
        tell(f"{one.path} -> {other.path} ({other.compatible}): {counted(len(changes), 'change')}")
        for change in changes:
            tell(f"  {change.path or other.name}  {change.says}", *_effects(change, one, other))
        if one.number in other.upcasts:
            tell(f"messages of v{one.number} are read by an upcaster")
        if place.is_dir():
            tell_consumers(heard, _from_here(place), other)
        tell(f"{counted(len(broken), 'broken promise')}" if broken else "nothing that is promised breaks")
    if broken:
        raise click.exceptions.Exit(1)


def _effects(change: SchemaChange, old: Version, new_: Version) -> list[str]:
    """Lines that say what a change does to whom."""
    lines = []
    for findings, writer, reader in ((change.backward, old, new_), (change.forward, new_, old)):
        verbs = {"fails": "cannot read", "misread": "misreads", "default": "reads"}
        for finding in findings:
            remedy = f"; {finding.remedy}" if finding.remedy else ""
            verb = verbs[finding.effect]
            lines.append(
                f"    v{reader.number} {verb} messages of v{writer.number}: {finding.path} {finding.says}{remedy}"
            )
    return lines


def _json(changes: tuple[SchemaChange, ...]) -> list[dict[str, Any]]:
    def told(finding: CompatibilityFinding) -> dict[str, Any]:
        return {
            "rule": finding.rule,
            "path": finding.path,
            "effect": finding.effect,
            "says": finding.says,
            "remedy": finding.remedy,
        }

    return [
        {
            "kind": change.kind,
            "old": change.old,
            "new": change.new,
            "says": change.says,
            "backward": [told(finding) for finding in change.backward],
            "forward": [told(finding) for finding in change.forward],
        }
        for change in changes
    ]


def _version(given: str) -> Version:
    """Version that an argument names: a file, or a version in the contracts here."""
    if given.endswith(".avsc"):
        if not Path(given).is_file():
            raise click.UsageError(f"there is no file {given}")
        return read_version(Path(given))
    library = _library()
    found = [version for path, version in library.by_path.items() if given in (path, path.partition("/")[2])]
    if not found:
        raise click.UsageError(
            f"there is no version {given} in {library.folder}; name one as OrderPlaced.v1, or a file"
        )
    return found[0]


def _library() -> Library:
    """Contracts of the current folder; if they cannot be used, the answer is no."""
    try:
        return folder_of(Path.cwd() / _ANY)
    except ContractError as why:
        tell(*str(why).split("\n"), err=True)
        raise click.exceptions.Exit(1) from why


def _folder() -> Path:
    """Folder of the contracts; the first contract of all goes to a new one here."""
    try:
        return find_folder(Path.cwd())
    except DeclarationError:
        return Path.cwd() / "contracts"


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
