"""Evidence of processes, in the form of the kit's invariants: of each document the last content alone.

Nobody watched the files and servers while something was written, so this is partial evidence.
"""

from collections.abc import Mapping
from typing import TypeAlias

from saga.declarations.values import Declared
from saga.engine.prepared_service import prepare
from saga.messages import Partition
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress.document import progress_key
from saga.progress.overflow import parse_saga
from saga.testing.invariants.evidence import Witnessed

Left: TypeAlias = Mapping[tuple[str, str], bytes]
"""Collection and key of each document of a service, and its content."""


def witnessed_at_the_end(declared: Declared, left: Left, committed: Mapping[Partition, int]) -> Witnessed:
    """Evidence of one service."""
    mine = progress_key(declared.name, "")
    archives: dict[str, list[tuple[str, bytes]]] = {}
    for (collection, key), content in left.items():
        if collection == ARCHIVES:
            archives.setdefault(parse_saga(key), []).append((key, content))
    return Witnessed(
        service=prepare(declared),
        versions={key.removeprefix(mine): (content,) for (where, key), content in left.items() if where == PROGRESS},
        archives=archives,
        documents={at: (content,) for at, content in left.items() if at[0] not in (PROGRESS, ARCHIVES)},
        committed=committed,
    )
