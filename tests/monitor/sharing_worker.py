"""Worker of a shared monitor as tests start it: `saga monitor run` with a topic of the test's own, in whose group the
dead are missed sooner."""

import sys

from saga.cli.main import main
from saga.monitor.shared import server, worker

if __name__ == "__main__":
    topic, *command = sys.argv[1:]
    for module in (server, worker):
        module.TRANSITIONS = topic  # type: ignore[attr-defined]  # they have it from elsewhere
    worker.SESSION_S, worker.HEARTBEAT_S = 3.0, 0.3
    sys.argv[1:] = command
    main()
