"""Evidence of a simulated world, in the form of the kit's invariants."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from saga.messages import Partition
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress.document import progress_key
from saga.progress.overflow import parse_saga
from saga.testing.invariants.evidence import Evidence, Witnessed
from saga.testing.simulation.cluster import Cluster
from saga.testing.simulation.store import Disk
from saga.testing.simulation.workers import Release, Workers


def evidence_of(cluster: Cluster, workers: Workers) -> Evidence:
    """Everything that the services of these workers wrote and said."""
    return Evidence(
        services={
            name: replace(
                _witnessed(newest, workers.releases[name], workers.disks[name], cluster.group(name).committed),
                keys=workers.keys,
            )
            for name, newest in workers.newest.items()
        },
        log=cluster.log,
        ends=cluster.ends(),
        spoiled=frozenset(cluster.spoiled),
    )


def _witnessed(
    newest: Release, releases: Sequence[Release], disk: Disk, committed: Mapping[Partition, int]
) -> Witnessed:
    service = newest.prepared
    versions: dict[str, list[bytes]] = {}
    archives: dict[str, list[tuple[str, bytes]]] = {}
    documents: dict[tuple[str, str], list[bytes]] = {}
    given = {
        r.gives: fake
        for release in releases
        for r in release.prepared.declared.resources
        for fake in release.fakes
        if isinstance(fake, r.gives)
    }
    mine = progress_key(service.name, "")
    for (collection, key), contents in disk.versions.items():
        if collection == PROGRESS:
            versions[key.removeprefix(mine)] = contents
        elif collection == ARCHIVES:
            archives.setdefault(parse_saga(key), []).append((key, contents[-1]))
        else:
            documents[collection, key] = contents
    return Witnessed(
        service=service,
        releases=tuple(release.prepared for release in releases),
        resources=given,
        versions=versions,
        archives=archives,
        documents=documents,
        committed=committed,
    )
