"""Recovery of workers: how long it takes from their start to the moment when all that the log had then is handled."""

from dataclasses import dataclass, field

from saga.messages import Partition
from saga.support.clock import Clock
from saga.telemetry.worker_view import WorkerView


@dataclass(slots=True)
class Recovery:
    """Recovery of one worker. What comes while it catches up is nothing that it has to catch up with: under load there
    may be no moment at which nothing is behind."""

    began_s: float
    _ends: dict[Partition, int] = field(default_factory=dict)
    """End of each partition, as it was first seen since that came to this worker."""

    def took_s(self, worker: WorkerView, clock: Clock) -> float | None:
        """Seconds that it took, if it is over now; to be asked often, until it is."""
        reach = worker.reach()
        if not reach:
            return None
        self._ends = {at: self._ends.get(at, end) for at, (_, end) in reach.items()}
        # Offsets at the end may be none of a record: then the end that is known now is lower.
        if any(done < min(self._ends[at], end) for at, (done, end) in reach.items()):
            return None
        return clock.monotonic_s() - self.began_s
