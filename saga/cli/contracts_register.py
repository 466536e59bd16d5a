"""`saga contracts register`: schemas of contracts in a schema registry."""

import asyncio
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path

import click

from saga.cli.contract_problems import folder_of
from saga.cli.printing import tell, tell_json
from saga.configuration.settings import Settings
from saga.ops.schema_registration import Registration, find_registrable, register
from saga.support.clock import SystemClock


@click.command("register")
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def register_contracts(names: tuple[str, ...], as_json: bool) -> None:
    """Register contracts in the schema registry at SAGA_REGISTRY.

    Of topics whose topic.json says "wire": "registry", all contracts, or those of NAMES: each version, the oldest
    first, under the subject <topic>-<full name of the record>. Again and again, at any time: what is registered stays
    so. Register before the service that emits a new version is deployed: services look ids up, and register nothing.

    The registry compares versions by its own rule for the subject; that of the contracts is saga contracts check.

    \b
    Exit code 0: all are registered.
    Exit code 1: the registry refused one; each line says why. The newer ones of that contract were not tried.
    Exit code 2: asked wrongly, or the registry cannot be used.
    """
    library = folder_of(Path.cwd() / "any")
    unknown = [name for name in names if name not in library.contracts]
    if unknown:
        near = get_close_matches(unknown[0], library.contracts, n=1)
        hint = f"; is it {near[0]}?" if near else ""
        raise click.UsageError(f"there is no contract {', '.join(unknown)} in {library.folder}{hint}")
    contracts = find_registrable(library, names)
    found = asyncio.run(register(contracts, Settings.from_environment(), SystemClock())) if contracts else []
    if as_json:
        tell_json({"registered": [asdict(each) for each in found]})
    else:
        _print(found)
    if any(each.id is None for each in found):
        raise click.exceptions.Exit(1)


def _print(found: list[Registration]) -> None:
    if not found:
        tell('nothing to register: no topic of these contracts has "wire": "registry" in its topic.json')
        return
    width = max(len(each.path) for each in found)
    for each in found:
        if each.id is None:
            tell(f"refused     {each.path:<{width}}  {each.subject}: {each.refused}")
        else:
            word = "as it is  " if each.was_there else "registered"
            tell(f"{word}  {each.path:<{width}}  {each.subject}: id {each.id}")
