"""Processes that share one id, of which no broker tells: seen by how often a group forgets a member."""

import logging
from collections import deque

from saga.support.clock import Clock

OFTEN = 3
"""Times within one session that are too many: silence makes a group forget a member once in a session, and not more."""

log = logging.getLogger("saga.broker.kafka")


class DuplicateInstance:
    """Watch for another process that has the id of this member; it says so once.

    A broker gives the place of a member to whoever comes with the same id. The one before hears at its next heartbeat
    that it is not known, and comes again: so they take the place from one another for ever.
    """

    def __init__(self, group: str, instance: str, session_s: float, clock: Clock) -> None:
        self._group, self._instance, self._session_s, self._clock = group, instance, session_s, clock
        self._forgotten_s: deque[float] = deque(maxlen=OFTEN)
        self._said = False

    def forgotten(self) -> None:
        """Note that the group does not know the member any more."""
        self._forgotten_s.append(self._clock.monotonic_s())
        often = len(self._forgotten_s) == OFTEN and self._forgotten_s[-1] - self._forgotten_s[0] < self._session_s
        if not self._instance or self._said or not often:
            return
        self._said = True
        log.error(
            "group %s: %d times within %g s its member was replaced: another process has SAGA_KAFKA_INSTANCE=%s too, "
            "and they take the partitions from one another: give each its own, or none to any",
            *(self._group, OFTEN, self._session_s, self._instance),
        )
