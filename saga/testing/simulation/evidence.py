"""Evidence of a simulated world, in the form of the kit's invariants."""

from collections.abc import Mapping, Sequence

from saga.messages import Partition
from saga.names import ARCHIVES, PROGRESS
from saga.progress.document import progress_key
from saga.progress.spill import saga_of
from saga.runtime.prepared import Prepared
from saga.testing.invariants.evidence import Evidence, Witnessed
from saga.testing.simulation.cluster import Cluster
from saga.testing.simulation.store import Disk
from saga.testing.simulation.workers import Workers


def evidence_of(cluster: Cluster, workers: Workers) -> Evidence:
    """Everything that the services of these workers wrote and said."""
    return Evidence(
        services={
            name: _witnessed(service, workers.fakes[name], workers.disks[name], cluster.group(name).committed)
            for name, service in workers.prepared.items()
        },
        log=cluster.log,
        ends=cluster.ends(),
        spoiled=frozenset(cluster.spoiled),
    )


def _witnessed(service: Prepared, fakes: Sequence[object], disk: Disk, committed: Mapping[Partition, int]) -> Witnessed:
    versions: dict[str, list[bytes]] = {}
    archives: dict[str, list[tuple[str, bytes]]] = {}
    documents: dict[tuple[str, str], list[bytes]] = {}
    given = {r.gives: fake for r in service.declared.resources for fake in fakes if isinstance(fake, r.gives)}
    mine = progress_key(service.name, "")
    for (collection, key), contents in disk.versions.items():
        if collection == PROGRESS:
            versions[key.removeprefix(mine)] = contents
        elif collection == ARCHIVES:
            archives.setdefault(saga_of(key), []).append((key, contents[-1]))
        else:
            documents[collection, key] = contents
    return Witnessed(
        service=service,
        resources=given,
        versions=versions,
        archives=archives,
        documents=documents,
        committed=committed,
    )
