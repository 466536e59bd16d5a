"""`saga describe`: what a service consumes, emits, compensates and waits for."""

from collections.abc import Iterable, Iterator

import click
import msgspec

from saga.choreography.manifest import LATER, DeclaredReaction, EmittedContract, Manifest
from saga.cli.printing import print_json, print_lines
from saga.cli.sources import load_manifests
from saga.support.durations import describe_duration
from saga.support.printable import quote_text


@click.command()
@click.argument("service")
@click.argument("sources", nargs=-1, metavar="[MANIFEST|MODULE]...")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as one JSON document on one line.")
def describe(service: str, sources: tuple[str, ...], as_json: bool) -> None:
    """Print what a service consumes, emits, compensates and waits for.

    SERVICE is the name of a service with a manifest, or a module that declares one. Further arguments are manifests,
    folders of manifests, or modules; without any, the manifests are in manifests/ beside contracts/.

    \b
    saga describe payment
        from its manifest
    saga describe services.payment
        as it is in the code

    \b
    Exit code 0: printed.
    Exit code 2: wrong usage: there is no such service, or a manifest or module cannot be used.
    """
    is_module = not sources and "." in service
    manifests = load_manifests((service,) if is_module else sources, None).manifests
    chosen = list(manifests.values()) if is_module else [m for name, m in manifests.items() if name == service]
    if not chosen:
        known = ", ".join(sorted(manifests))
        raise click.UsageError(f"there is no service {quote_text(service)}; there are {known}")
    if as_json:
        print_json([msgspec.to_builtins(each) for each in chosen])
        return
    for number, each in enumerate(chosen):
        print_lines(*([""] if number else []), *format_service(each))


def format_service(manifest: Manifest) -> list[str]:
    """Return the description of a service as lines."""
    lines = [manifest.service, *([f"  {manifest.doc}"] if manifest.doc else [])]
    lines += ["", "consumes", *_align((use.contract, _describe_use(manifest, use)) for use in manifest.consumes)]
    lines += ["", "emits", *_align((each.contract, _describe_emitted(manifest, each)) for each in manifest.emits)]
    for title, kind in (("handlers", "handler"), ("deadlines", "deadline"), ("compensations", "compensation")):
        reactions = [each for each in manifest.reactions if each.kind == kind]
        if reactions:
            lines += ["", title, *_align((each.name, "; ".join(_describe_reaction(each))) for each in reactions)]
    if manifest.resources or manifest.documents:
        lines += ["", "uses"]
        lines += _align((name, kind) for name, kind in sorted({**manifest.resources, **manifest.documents}.items()))
    return lines


def _align(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Format pairs as two aligned columns, indented. If there are no pairs, return a line that says so."""
    found = list(rows)
    width = max((len(name) for name, _ in found), default=0)
    return [f"  {name:{width}}  {text}".rstrip() for name, text in found] or ["  nothing"]


def _describe_use(manifest: Manifest, use: EmittedContract) -> str:
    takers = [each.name for each in manifest.reactions if use.contract in each.hears]
    return f"{_describe_contract(use)}: {', '.join(takers)}"


def _describe_emitted(manifest: Manifest, each: EmittedContract) -> str:
    emitters = [reaction.name for reaction in manifest.reactions if each.contract in reaction.emits]
    return f"{_describe_contract(each)}: {', '.join(emitters)}"


def _describe_contract(each: EmittedContract) -> str:
    marks = [f"version {each.version}", f"topic {each.topic}"]
    marks += ["starts a saga"] if each.starts else []
    marks += [f"outcome {each.outcome}"] if each.outcome else []
    marks += ["produced externally"] if each.produced_externally else []
    marks += ["consumed externally"] if each.consumed_externally else []
    return ", ".join(marks)


def _describe_reaction(each: DeclaredReaction) -> Iterator[str]:
    """Yield what is known about a handler, compensation or deadline: its events, what it does and what it returns."""
    parameters = [" or ".join(names) for names in (*each.takes, *each.took)]
    if each.within_s is not None:
        unless = f" unless {' or '.join(each.unless)}" if each.unless else ""
        yield f"{describe_duration(each.within_s)} after {' and '.join(parameters)}{unless}"
    else:
        undoes = f"undoes {each.undoes} on " if each.undoes else "takes "
        yield undoes + " and ".join(parameters) + "".join(f", or without {name}" for name in each.optional)
    if each.repeats:
        yield f"runs for every {' or '.join(each.repeats)}"
    if each.steps is None or each.updates is None:
        yield "its steps and updates cannot be determined"
    else:
        yield from (f"calls {name}" for name in each.steps)
        yield from (f"updates {name}" for name in each.updates)
    if each.irreversible:
        yield "cannot be undone"
    results = [" and ".join(_describe_result(name) for name in part) or "nothing" for part in each.returns]
    yield f"returns {', or '.join(results)}" if results else "returns nothing"


def _describe_result(name: str) -> str:
    if name == LATER:
        return "goes on later"
    return f"any number of {name.removesuffix('*')}" if name.endswith("*") else name
