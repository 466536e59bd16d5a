"""Compare a release of a service with its previous release by their manifests; read and write the released manifests.

A difference that would prevent open sagas or other services from continuing is refused, with advice on what to do
instead. All other differences are only reported. `compare_releases` and `find_affected` are pure functions.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from saga.choreography import manifest
from saga.choreography.manifest import (
    ALL,
    ConsumedContract,
    DeclaredReaction,
    DeclaredState,
    EmittedContract,
    Fields,
    Manifest,
    make_manifest,
)
from saga.contracts.compatibility import Concern, Consumer, SchemaChange, find_concerns
from saga.contracts.contract import Version
from saga.contracts.library import Library
from saga.declarations.changes import library_of
from saga.declarations.values import Declared
from saga.errors import ConfigurationError

ANYWAY = "saga manifest --write --anyway"

FOLDER = "manifests"
OUTSIDE = "consumers outside"


@dataclass(frozen=True, slots=True)
class ReleaseDifference:
    """A difference between a release and the previous release."""

    service: str
    where: str
    """Handler, event or part of the service that differs."""
    what: str
    way_out: str = ""
    """What to do instead, if the difference is refused; empty if it is harmless."""

    @property
    def verdict(self) -> Literal["refused", "harmless"]:
        """Return the verdict about the difference, as text."""
        return "refused" if self.way_out else "harmless"


def compare_releases(
    old: Manifest, new: Manifest, others: Sequence[Manifest], consumed_externally: Collection[str] = ()
) -> list[ReleaseDifference]:
    """Return the differences between a release and the previous release, refused ones first.

    Args:
        others: Manifests of the other services.
        consumed_externally: Contracts with consumers outside the known services.
    """
    comparison = _ReleaseComparison(old, new, others, consumed_externally)
    found = [
        *comparison.compare_names(),
        *comparison.compare_kinds(),
        *comparison.compare_reactions(),
        *comparison.compare_events(),
        *comparison.compare_states(),
        *comparison.compare_stored_names(),
        *comparison.find_additions(),
    ]
    if not found and old != new:
        found = [ReleaseDifference(new.service, new.service, "differs in texts, times or fields read")]
    return sorted(found, key=lambda each: not each.way_out)


def check_new_service(made: Manifest, others: Sequence[Manifest]) -> list[ReleaseDifference]:
    """Return the differences to report for a service that has no released manifest yet.

    If another service has a reaction with the same name and events, this service may be that one under a new name. A
    service that declares where it begins (`start`) counts as new, and has no differences.
    """
    if made.start:
        return []
    service, twins = made.service, [each for each in others if _is_twin(made, each)]
    name = service.replace("-", "_")
    found = [
        ReleaseDifference(
            service,
            service,
            f"is new, and reacts as {twin.service} does: if it is that one, renamed, all work is done again, with "
            "idempotency keys that are new to the external systems",
            f'if it is: {name} = Service("{service}", was="{twin.stored}"); if it is another service, say where it '
            f'begins: Service("{service}", start="now"), or start="beginning"',
        )
        for twin in twins
    ]
    topics = sorted({each.topic for each in made.consumes if any(each.contract in other.emitted for other in others)})
    if topics and not found:
        found.append(
            ReleaseDifference(
                service,
                service,
                f"is new, and handles all that lies in {_join_names(topics)}, whatever its age: Service({service!r}, "
                'start="now") begins with what is published from its first start on',
            )
        )
    return found


def _is_twin(one: Manifest, other: Manifest) -> bool:
    """Return whether both services have a reaction of the same name and kind to the same events."""
    known = {(each.name, each.kind, each.takes) for each in other.reactions}
    return any((each.name, each.kind, each.takes) in known for each in one.reactions)


@dataclass(frozen=True, slots=True)
class _ReleaseComparison:
    """Compares two manifests of one service. It also knows the manifests of the other services."""

    old: Manifest
    new: Manifest
    others: Sequence[Manifest]
    consumed_externally: Collection[str]

    def refuse(self, where: str, what: str, way_out: str) -> ReleaseDifference:
        return ReleaseDifference(self.new.service, where, what, way_out)

    def note(self, where: str, what: str) -> ReleaseDifference:
        return ReleaseDifference(self.new.service, where, what)

    def compare_names(self) -> Iterator[ReleaseDifference]:
        """Report a new name of the service, which `was` allows, and a new `start`. Neither is refused.

        A new `start` applies only to topics that the service has not read before.
        """
        if self.old.service != self.new.service:
            yield self.note(
                self.new.service,
                f"was called {self.old.service}; stored, in topics, keys and metrics it stays {self.new.stored}",
            )
        if self.old.start != self.new.start:
            yield self.note(
                self.new.service,
                f"begins in topics that are new to it at {self.new.start or 'beginning'}; where it has begun it stays",
            )

    def compare_kinds(self) -> Iterator[ReleaseDifference]:
        """Report changes of the key field by which the service's sagas are identified, and of the key or topic of
        single events.
        """
        if self.old.kind != self.new.kind:
            yield self.refuse(
                self.new.service,
                f"its sagas were known by {self.old.kind!r}, now by {self.new.kind!r}: open ones are not found",
                f"keep {self.old.kind!r}, or declare another service beside this one, with its own start",
            )
        before, now = ({each.contract: each for each in _events(one)} for one in (self.old, self.new))
        for name in sorted(before.keys() & now.keys()):
            for what, was, is_ in (
                ("key", before[name].key, now[name].key),
                ("topic", before[name].topic, now[name].topic),
            ):
                if was != is_:
                    yield self.refuse(
                        name,
                        f"its {what} was {was!r} and is {is_!r}: messages in flight have the old one",
                        "give the changed contract another name, and consume both until the old one is drained",
                    )

    def compare_reactions(self) -> Iterator[ReleaseDifference]:
        """Report handlers, compensations and deadlines that were removed, or were changed in such a way that open work
        could not continue.
        """
        for old in self.old.reactions:
            new = self.new.reaction(old.name)
            if new is None:
                yield self._report_removed(old)
            elif new.kind != old.kind or new.undoes != old.undoes:
                yield self.refuse(
                    old.name,
                    f"was {_describe_reaction(old)} and is {_describe_reaction(new)}: what it has begun is of the "
                    "other kind",
                    f"keep {old.name} as it was, and give the new one another name",
                )
            else:
                yield from self._report_changed(old, new)

    def _report_removed(self, old: DeclaredReaction) -> ReleaseDifference:
        like = [
            each.name
            for each in self.new.reactions
            if self.old.reaction(each.name) is None and (each.kind, each.takes) == (old.kind, old.takes)
        ]
        renamed = f"{old.kind} renamed to {like[0]}?" if len(like) == 1 else f"{old.kind} was removed:"
        return self.refuse(
            old.name,
            f"{renamed} ids and keys contain {old.ids!r}, and what it has begun or has pending in open sagas is "
            "stranded",
            f"keep the name {old.name}; when no open saga has work of it (saga sagas list), {ANYWAY}",
        )

    def _report_changed(self, old: DeclaredReaction, new: DeclaredReaction) -> Iterator[ReleaseDifference]:
        """Report changes of one reaction: events that it no longer takes or now requires, idempotency keys that it no
        longer uses, its version, and how often it runs.
        """
        for part in new.took:
            if part not in old.took:
                yield self.refuse(
                    old.name,
                    f"takes {' or '.join(part)}, which {new.undoes} took: earlier results do not contain it",
                    f"take {' | '.join(part)} | None; when no work of {new.undoes} is left to compensate, {ANYWAY}",
                )
        for name in sorted(set(_describe_taken(old)) - set(_describe_taken(new))):
            yield self.refuse(
                old.name,
                f"no longer takes {name}: one that is pending, parked or queued in an open saga would stay there"
                if old.kind != "compensation"
                else f"no longer takes {name}: work with that result would not be compensated",
                f"keep {name} among its parameters; when no open saga holds one, {ANYWAY}",
            )
        needed = {frozenset(part) for part in new.takes} - {frozenset(part) for part in old.takes}
        if needed and len(new.takes) > len(old.takes):
            names = ", ".join(sorted(name for part in needed for name in part))
            yield self.note(old.name, f"also waits for {names}; open sagas in which it has run already do not")
        gone = () if old.keys is None or new.keys is None else set(old.keys) - set(new.keys)
        for key in sorted(gone):
            yield self.refuse(
                old.name,
                f"no longer uses the key {key!r}: a run that has begun calls external systems with another one, and "
                "becomes a dead letter",
                f"keep the key, or add the new code behind a flag or a version, beside the old code; when none of its "
                f"runs is open, {ANYWAY}",
            )
        if new.version < old.version:
            yield self.refuse(
                old.name,
                f"was version {old.version} and is {new.version}: runs that began under the newer one wait for a "
                "release that has it, and finally become dead letters",
                f"keep version={old.version}; when none of its runs is open, {ANYWAY}",
            )
        elif new.version > old.version:
            yield self.note(
                old.name,
                f"is version {new.version}; runs that have begun keep their version, and runs of the new one "
                "wait while a process of the previous release has them",
            )
        if old.repeats and new.repeats and set(old.repeats).isdisjoint(new.repeats):
            yield self.refuse(
                old.name,
                f"ran once for each {' or '.join(old.repeats)} and runs once for each {' or '.join(new.repeats)}",
                f"keep repeats={' | '.join(old.repeats)}; when no open saga has any of these events, {ANYWAY}",
            )
        if old.repeats and not new.repeats:
            yield self.refuse(
                old.name,
                "no longer has repeats=: in an open saga one more of its events is handled, and further ones "
                "become dead letters",
                f"keep repeats={' | '.join(old.repeats)}; when its event comes only once in each open saga, {ANYWAY}",
            )

    def compare_events(self) -> Iterator[ReleaseDifference]:
        """Report events that are no longer emitted although a service consumes them, and events that no service
        consumes any more."""
        for name in sorted(self.old.emitted - self.new.emitted):
            consumers = sorted(each.service for each in self.others if each.find_consumed(name) is not None)
            own = [each.name for each in self.new.reactions if name in each.hears]
            outside = ["external consumers"] if name in self.consumed_externally else []
            waiting = [*consumers, *(f"{self.new.service} itself ({each})" for each in own), *outside]
            if waiting:
                yield self.refuse(
                    name,
                    f"is no longer emitted, but is consumed by {_join_names(waiting)}",
                    "keep emitting it until its consumers are released without it, and their manifests show it",
                )
            else:
                yield self.note(name, "is no longer emitted, and has no consumer")
        for each in self.old.consumes:
            if self.new.find_consumed(each.contract) is None:
                producers = sorted(other.service for other in self.others if each.contract in other.emitted)
                left = any(other.find_consumed(each.contract) for other in self.others)
                if producers and not left and each.contract not in self.consumed_externally:
                    yield self.note(
                        each.contract, f"has no consumer any more, but {_join_names(producers)} still emits it"
                    )

    def compare_states(self) -> Iterator[ReleaseDifference]:
        """Report changes of the state and its version."""
        old, new = self.old.state, self.new.state
        if old is None or new is None:
            if old is not None:
                yield self.refuse(
                    "state",
                    f"{old.type} was removed: this release does not see the state of open sagas",
                    f"keep state={old.type}; when no saga is open, {ANYWAY}",
                )
            return
        if new.version < old.version:
            yield self.refuse(
                "state",
                f"was version {old.version} and is {new.version}: this release cannot handle sagas that the previous "
                "one has migrated",
                "keep all migrations, and add one back to the older version",
            )
        elif new.version == old.version:
            yield from self._compare_same_version(old, new)
        else:
            yield self.note("state", f"is version {new.version}; open sagas are migrated when their next run ends")

    def _compare_same_version(self, old: DeclaredState, new: DeclaredState) -> Iterator[ReleaseDifference]:
        way_out = f"declare @{self.new.service.replace('-', '_')}.migrate({old.version}) from {old.type} as it was"
        for name in sorted(old.fields.keys() & new.fields.keys()):
            if old.fields[name] != new.fields[name]:
                yield self.refuse(
                    f"state.{name}",
                    f"was {old.fields[name]} and is {new.fields[name]}, and the state is still version {old.version}: "
                    "open sagas hold the old one",
                    way_out,
                )
        gone, come = old.fields.keys() - new.fields.keys(), new.fields.keys() - old.fields.keys()
        for name in sorted(gone):
            if come:
                yield self.refuse(
                    f"state.{name}",
                    f"was removed while {_join_names(sorted(come))} was added: if it was renamed, open sagas lose it",
                    f"{way_out}; if it was not, release the two changes one after the other",
                )
            else:
                yield self.note(f"state.{name}", "was removed; its values stay in the history")

    def compare_stored_names(self) -> Iterator[ReleaseDifference]:
        """Report names of resources and collections that no longer exist. Controls of operators and records of
        `saga.on_abort` refer to resources by name, and documents are stored by collection.
        """
        for name, gives in self.old.resources.items():
            if name not in self.new.resources:
                yield self.refuse(
                    name,
                    f"the resource ({gives}) was removed or renamed: limits and pauses that operators set, and "
                    "records of saga.on_abort, refer to its name",
                    f"keep the name {name}; when no open run refers to it, {ANYWAY}",
                )
        for collection, kind in self.old.documents.items():
            if collection not in self.new.documents:
                yield self.refuse(
                    collection,
                    f"the collection of {kind} was removed or renamed: its documents stay behind, with the markers "
                    "that make an update happen once",
                    f"keep the collection {collection}; when its documents are moved and no saga is open, {ANYWAY}",
                )

    def find_additions(self) -> Iterator[ReleaseDifference]:
        """Report new handlers and events, and new versions of events. All of these are harmless."""
        for each in self.new.reactions:
            if self.old.reaction(each.name) is None:
                late = "; sagas in which its event was handled before do not get it" if each.kind == "deadline" else ""
                yield self.note(each.name, f"is new: {_describe_reaction(each)}{late}")
        emitted = {name for other in (self.new, *self.others) for name in other.emitted}
        for use in self.new.consumes:
            before = self.old.find_consumed(use.contract)
            if before is None:
                missing = "" if use.contract in emitted else "; no manifest emits it yet"
                yield self.note(use.contract, f"is consumed from now on{missing}")
            elif before.version != use.version:
                yield self.note(use.contract, f"is read as version {use.version}, before as {before.version}")
        versions = {event.contract: event.version for event in self.old.emits}
        for event in self.new.emits:
            if event.contract not in versions:
                yield self.note(event.contract, "is emitted from now on")
            elif versions[event.contract] != event.version:
                yield self.note(
                    event.contract,
                    f"is emitted as version {event.version}, before as {versions[event.contract]}: its consumers need "
                    "that schema first",
                )


def _events(manifest: Manifest) -> tuple[EmittedContract, ...]:
    return (*manifest.consumes, *manifest.emits)


def _describe_taken(reaction: DeclaredReaction) -> tuple[str, ...]:
    optional = () if reaction.kind == "compensation" else reaction.optional
    return (*(name for part in reaction.takes for name in part), *optional)


def _describe_reaction(reaction: DeclaredReaction) -> str:
    if reaction.undoes is not None:
        return f"the compensation of {reaction.undoes}"
    return f"a {reaction.kind}"


def _join_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# -------------------------------------------------------------------- folder


@dataclass(frozen=True, slots=True)
class ComparedManifest:
    """The current manifest of a service, compared with the manifest of its last release."""

    manifest: Manifest
    path: Path
    """Path to which the manifest of the next release is written."""
    replaces: Path | None
    """Existing file of the last release, which may have another name; `None` if the service is new."""
    differences: Sequence[ReleaseDifference]

    @property
    def is_new(self) -> bool:
        """Return whether the service has no released manifest yet."""
        return self.replaces is None

    @property
    def is_refused(self) -> bool:
        """Return whether a difference would prevent open sagas or other services from continuing."""
        return any(each.verdict == "refused" for each in self.differences)


def compare_with_released(services: Sequence[Declared], folder: Path | None = None) -> list[ComparedManifest]:
    """Compare services with their last releases.

    Args:
        folder: Folder of all manifests; by default the one next to the contracts of each service.

    Raises:
        ConfigurationError: Released manifests cannot be used.
    """
    found = []
    for declared in services:
        library = library_of(declared.reactions[0].taken_events[0])
        place = folder or manifest_folder(library)
        released, made = read_manifests(place), make_manifest(declared)
        old = next((each for each in released.values() if each.stored == made.stored), None)
        others = [each for each in released.values() if each is not old]
        consumed_externally = {name for name, contract in library.contracts.items() if contract.consumed_externally}
        found.append(
            ComparedManifest(
                manifest=made,
                path=place / f"{made.service}.json",
                replaces=None if old is None else place / f"{old.service}.json",
                differences=check_new_service(made, others)
                if old is None
                else compare_releases(old, made, others, consumed_externally),
            )
        )
    return found


def manifest_folder(library: Library) -> Path:
    """Return the folder of the manifests that belong to these contracts."""
    return library.folder.parent / FOLDER


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of one service. Raises `ConfigurationError` if the file cannot be used."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as why:
        raise ConfigurationError(f"{path.name} cannot be used:", [f"cannot be read: {why}"]) from why
    return manifest.parse_manifest(text, path.name)


def read_manifests(folder: Path) -> Mapping[str, Manifest]:
    """Read the manifests of a folder, by service. A missing folder counts as empty. Raises a `ConfigurationError` that
    names all unusable files.
    """
    found: dict[str, Manifest] = {}
    problems: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            read = read_manifest(path)
        except ConfigurationError as why:
            problems += [f"{path.name}: {problem}" for problem in why.problems]
            continue
        if f"{read.service}.json" != path.name:
            problems.append(f"{path.name}: is of the service {read.service!r}; call it {read.service}.json")
        found[read.service] = read
    if problems:
        raise ConfigurationError(f"the manifests in {folder} cannot be used:", problems)
    return found


def save_manifest(made: ComparedManifest) -> bool:
    """Write the manifest of a service as that of its last release. Return whether its file has changed."""
    text = manifest.format_manifest(made.manifest)
    if made.path.exists() and made.path.read_text("utf-8") == text:
        return False
    made.path.parent.mkdir(parents=True, exist_ok=True)
    made.path.write_text(text, "utf-8")
    if made.replaces is not None and made.replaces != made.path:
        made.replaces.unlink(missing_ok=True)
    return True


# -------------------------------------------------------------------- consumers


@dataclass(frozen=True, slots=True)
class AffectedConsumer:
    """A service that consumes a contract, and how a new version affects it."""

    service: str
    """Name of the service, or `OUTSIDE`."""
    version: int | None
    """Version with which the service reads the contract now; `None` if unknown."""
    fields: Fields
    """Fields of the event that the service's code may read."""
    concerns: tuple[Concern, ...]


def find_affected(
    changes: Sequence[SchemaChange], old: Version, new: Version, manifests: Iterable[Manifest]
) -> list[AffectedConsumer]:
    """Return the services that consume this contract, each with the effects that the changes from `old` to `new` have
    on it.

    A service that already reads the event as `new` no longer runs code for `old`, so effects on such code are left out.
    If `new` upcasts `old`, the effects of schema resolution on old messages are left out as well.
    """
    found = [
        AffectedConsumer(manifest.service, use.version, use.fields, _concerns(changes, old, new, manifest.service, use))
        for manifest in manifests
        if (use := manifest.find_consumed(new.name)) is not None
    ]
    if new.schema.get("consumed_by") == "external":
        consumer = Consumer(service=OUTSIDE, fields=None)
        found.append(AffectedConsumer(OUTSIDE, None, ALL, tuple(find_concerns(changes, [consumer]))))
    return found


def _concerns(
    changes: Sequence[SchemaChange], old: Version, new: Version, service: str, use: ConsumedContract
) -> tuple[Concern, ...]:
    fields = None if isinstance(use.fields, str) else frozenset(use.fields)
    is_newer = use.version >= new.number
    return tuple(
        concern
        for concern in find_concerns(changes, [Consumer(service=service, fields=fields)])
        if not (is_newer and (concern.direction == "forward" or concern.effect == "gone"))
        if not (old.number in new.upcasts and concern.direction == "backward" and concern.effect != "gone")
    )
