"""Collections of which a store notes changes for a service: those that no release takes any more are dropped by people,
for no process can know what another release of its service takes."""

from collections.abc import Collection, Iterator

from saga.changes.port import ChangeSource
from saga.declarations.values import Declared
from saga.errors import ConfigurationError
from saga.messaging.names import changes_of
from saga.ops.connectors import collections_changed
from saga.store.port import Store
from saga.support.adapter_description import Finding


def findings_about(service: Declared, store: Store) -> Iterator[Finding]:
    """Find collections whose changes are noted for a service, and that it does not take as it is declared here. Raises
    `StoreError`."""
    watched = store.watched(service.name) if isinstance(store, ChangeSource) else ()
    for collection in sorted(set(watched) - set(collections_changed(service))):
        yield Finding(
            "warning",
            f"changes of {collection} for {service.name}",
            f"the store notes them, and this release of {service.name} takes none of them",
            f"if no other release does, they pile up on {changes_of(service.name, collection)} for nothing",
            f"once no release takes them: saga changes drop MODULE --collection {collection}",
        )


async def drop(service: Declared, collections: Collection[str], store: Store) -> None:
    """Note changes of these collections for a service no more, and drop those that nobody has relayed. Raises
    `ConfigurationError` for a name that is not to be dropped, with nothing done, and `StoreError`."""
    if not isinstance(store, ChangeSource):
        raise ConfigurationError(
            "nothing was dropped:", ["this store notes no changes: take the collection out of the connector"]
        )
    watched, taken = store.watched(service.name), collections_changed(service)
    there = ", ".join(sorted(watched)) or "of none"
    problems = [
        f"{service.name!r} takes changes of {each!r}: deploy a release first that does not"
        if each in taken
        else f"no changes of {each!r} are noted for {service.name!r}; they are of: {there}"
        for each in collections
        if each in taken or each not in watched
    ]
    if problems:
        raise ConfigurationError("nothing was dropped:", problems)
    await store.unwatch(service.name, collections)
