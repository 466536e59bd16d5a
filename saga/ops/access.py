"""Derive from the declarations of services which rights services and people need on brokers and stores, and make the
commands that grant these rights. No server is contacted."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from saga.broker import acls
from saga.broker.acls import AclRight, BrokerUse
from saga.broker.adapter import HasBrokerUsers as BrokerAsksWho
from saga.configuration import adapters
from saga.configuration.settings import address_given
from saga.contracts.contract import Contract
from saga.contracts.library import contract_of
from saga.declarations.changes import is_change
from saga.declarations.values import Declared
from saga.engine.lifecycle import collections_of
from saga.engine.prepared_service import needs_of, relayed_by
from saga.errors import ConfigurationError
from saga.messages import Topic, name_of
from saga.messaging.names import CLIENTS
from saga.store.adapter import Form, grant_role_commands, required_roles
from saga.store.adapter import HasStoreUsers as StoreAsksWho

Who: TypeAlias = Literal["service", "client", "operator", "administrator", "doctor"]
"""Kind of user: see `saga.broker.acls.Role`."""
SERVER = "HOST:9092"
"""Placeholder for Kafka's address in commands. It is used if the settings name no address."""
ITSELF: Collection[Who] = ("service", "doctor")
"""Kinds of users that are different for each service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedAccess:
    """The rights or roles of one user, and the commands that grant them."""

    who: Who
    services: tuple[str, ...]
    user: str
    rights: tuple[Mapping[str, str], ...]
    """Rights on Kafka, or roles on Couchbase, each as a mapping of its fields."""
    commands: tuple[str, ...]


class ClientUse(NamedTuple):
    """The events that a client publishes or consumes, and the groups in which it consumes."""

    events: Collection[str] = ()
    """Names of the events that the client publishes or consumes. Empty means all events that clients may use."""
    groups: Collection[str] = ()
    """Names of the consumer groups in which the client consumes."""


def list_kafka_access(
    services: Sequence[Declared],
    who: Who,
    address: str,
    principal: str | None,
    client: ClientUse,
    transitions: Topic | None,
) -> list[GrantedAccess]:
    """List the rights that a kind of user needs on Kafka. Raises `ConfigurationError` if `client` asks for something
    that clients may not do.

    Args:
        who: Kind of user.
        principal: One Kafka user for all services. Without it each service has its own user, and all operators share
            one.
        client: How a client uses the events, if the rights are for clients.
        transitions: Topic on which services publish their transition events.
    """
    adapter = adapters.broker_adapter(address)
    server = ",".join(adapter.servers(address)) if isinstance(adapter, BrokerAsksWho) else SERVER
    granted = []
    for name, some in _list_users(services, who, principal).items():
        needs = _list_client_rights(some, client) if who == "client" else needs_of(some, transitions)
        rights = acls.required_rights(needs, who)
        user = name if principal else f"User:{name}"
        rights = [*rights, *(_list_relay_rights(some) if who == "service" else ())]
        granted.append(
            GrantedAccess(
                who=who,
                services=tuple(declared.name for declared in some),
                user=user,
                rights=tuple(right._asdict() for right in rights),
                commands=tuple(acls.grant_commands(rights, user, server)),
            )
        )
    return granted


def _list_relay_rights(services: Sequence[Declared]) -> Sequence[AclRight]:
    """List the rights to write to topics of document changes. None are needed if a connector writes them, because the
    store does not record changes itself."""
    if isinstance(adapters.store_adapter(address_given("store", None)), StoreAsksWho):
        return ()
    return [AclRight("Write", "topic", topic) for d in services for topic in sorted(relayed_by(d))]


def list_couchbase_access(
    services: Sequence[Declared], who: Literal["service", "operator"], address: str, user: str | None, form: Form
) -> list[GrantedAccess]:
    """List the roles that each user needs on Couchbase. An operator only needs to read.

    Raises `ConfigurationError` if the store at `address` has no users.
    """
    adapter = adapters.store_adapter(address)
    if not isinstance(adapter, StoreAsksWho):
        raise ConfigurationError(
            "there are no roles to be given:",
            [f"SAGA_STORE is {address}, which has no users: give --store couchbase://HOST/BUCKET/SCOPE"],
        )
    server = adapter.servers(address)[0]
    granted = []
    for name, some in _list_users(services, who, user).items():
        places = [place for d in some for place in adapter.keyspaces(address, d.name, collections_of(d))]
        needed = required_roles(places, readonly=who == "operator")
        granted.append(
            GrantedAccess(
                who=who,
                services=tuple(declared.name for declared in some),
                user=name,
                rights=tuple({"role": role.name, **role.on._asdict()} for role in needed),
                commands=tuple(grant_role_commands(needed, name, server, form)),
            )
        )
    return granted


def _list_users(services: Sequence[Declared], who: Who, given: str | None) -> dict[str, Sequence[Declared]]:
    """Group the services by the user that accesses them. `given`: the one user for all of them, if there is one."""
    if given is None and who in ITSELF:
        return {declared.name: [declared] for declared in services}
    return {given or who: services}


def _list_client_rights(services: Sequence[Declared], client: ClientUse) -> BrokerUse:
    """Compute which topics and groups a client uses.

    Only events that these services consume or emit count. The client may publish events that clients may produce. It
    may read events that clients may consume, and outcomes. Raises `ConfigurationError` if `client` asks for anything
    else.
    """
    named = {
        name_of(event): contract_of(event)
        for d in services
        for r in d.reactions
        for event in (*r.consumed_events, *r.emits)
        if not is_change(event)
    }
    for_clients = {
        name: contract for name, contract in named.items() if contract.produced_externally or _is_consumed(contract)
    }
    problems = [
        f"{name}: " + ("it is for services alone" if name in named else "these services have no such event")
        for name in sorted(set(client.events) - set(for_clients))
    ]
    chosen = [contract for name, contract in for_clients.items() if not client.events or name in client.events]
    if problems or not chosen:
        problems.append(f"clients may publish or receive {', '.join(sorted(for_clients)) or 'none of their events'}")
    reads = frozenset(contract.topic for contract in chosen if _is_consumed(contract))
    if client.groups and not reads:
        problems.append("a group is for listening, and none of these events is consumed externally")
    if problems:
        raise ConfigurationError("there is nothing to be allowed:", problems)
    return BrokerUse(
        writes=frozenset(contract.topic for contract in chosen if contract.produced_externally),
        reads=reads,
        groups=frozenset(f"{CLIENTS}{group}" for group in client.groups),
    )


def _is_consumed(contract: Contract) -> bool:
    """Return whether clients may consume the event, or query it as an outcome."""
    return contract.consumed_externally or contract.outcome is not None
