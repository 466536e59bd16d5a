"""Identity of a group member: its service, and the store in which the service keeps its sagas.

A group is found by its name alone. Two projects may have a service of the same name on one broker, or a process may be
configured with another store than its peers. Then both join the same group, share partitions and positions, and each
loses the messages that the other takes. So every member reports its identity in its subscription.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from saga.errors import ConfigurationError
from saga.support.printable import quoted

TEXT_MAX = 200
"""Longest text of an identity that is taken from others."""


class MemberIdentity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identity that a member states. Two members of one group have to agree in `service` and `store`."""

    service: str
    store: str
    """Id of the store, made by chance when the service first wrote to it."""
    worker: str = ""
    """Host and number of its process, for people."""

    def agrees_with(self, other: "MemberIdentity") -> bool:
        """Return whether both are members of one service on one store."""
        return (self.service, self.store) == (other.service, other.store)

    def __str__(self) -> str:
        where = f" in process {quoted(self.worker)}" if self.worker else ""
        return f"service {quoted(self.service)}{where} with store {quoted(self.store)}"


def encode_identity(identity: MemberIdentity | None) -> bytes:
    """Encode an identity for the group's subscription; empty for a member that states none."""
    return b"" if identity is None else msgspec.json.encode(identity)


def decode_identity(content: bytes | None) -> MemberIdentity | None:
    """Decode what a member states; `None` if it states nothing that we can read, as another program does."""
    if not content:
        return None
    try:
        identity = msgspec.json.decode(content, type=MemberIdentity)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return identity if max(map(len, (identity.service, identity.store, identity.worker))) <= TEXT_MAX else None


def find_disagreeing(ours: MemberIdentity | None, members: Iterable[MemberIdentity | None]) -> tuple[str, ...]:
    """List the members that disagree with us, each in a line. Who states nothing is no stranger: it may be a client of
    an earlier release."""
    if ours is None:
        return ()
    return tuple(sorted({str(each) for each in members if each is not None and not each.agrees_with(ours)}))


def disagreement_error(group: str, ours: MemberIdentity | None, strangers: Iterable[str]) -> ConfigurationError:
    """Error for a member that must not join a group in which strangers are."""
    return ConfigurationError(
        f"nothing was started: the group {group!r} belongs to somebody else. This is {ours}. Each of the two would "
        "lose the messages that the other one takes. Is SAGA_STORE the one of this service's other processes? If the "
        "other is another project, give each its own broker. In the group:",
        list(strangers),
    )
