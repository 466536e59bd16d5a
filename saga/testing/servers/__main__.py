"""Run Kafka and Couchbase's test server, to try services on real servers: `python -m saga.testing.servers`.

The servers come from the same source as in tests (`provider`). The output is a list of `export` lines, to be pasted
into a shell or sourced: the settings with which services and commands use these servers. Ctrl-C or SIGTERM stops the
servers and deletes their data. Servers whose addresses are given in the environment are used as they are, and keep
running.
"""

import shlex
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from saga.errors import SagaError
from saga.testing.processes.servers import ServerAddresses
from saga.testing.servers.provider import servers


def main() -> int:
    """Run the servers until SIGINT or SIGTERM. Return the exit code: 0, or 2 if the servers cannot be started."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: sys.exit(0))
    sys.stderr.write("starting Kafka and Couchbase's test server; the first time their jars are fetched ...\n")
    with TemporaryDirectory(prefix="saga-servers-") as folder:
        try:
            with servers(Path(folder)) as running:
                sys.stdout.write(format_exports(running.aside))
                sys.stdout.flush()
                Event().wait()
        except SagaError as why:
            sys.stderr.write(f"saga: {why}\n")
            return 2
    return 0


def format_exports(addresses: ServerAddresses) -> str:
    """Return the settings for these servers as `export` lines for a shell.

    >>> print(format_exports(ServerAddresses(kafka="a:1", couchbase="couchbase://b", bucket="saga")))
    # The servers run until Ctrl-C. In the terminals that use them:
    export SAGA_BROKER=kafka://a:1
    export SAGA_KAFKA_REPLICATION=1
    export SAGA_KAFKA_MIN_INSYNC=1
    export SAGA_STORE=couchbase://b/saga
    export SAGA_STORE_DURABILITY=none
    export SAGA_COUCHBASE_USERNAME=saga
    export SAGA_COUCHBASE_PASSWORD=secret
    <BLANKLINE>
    """
    lines = [f"export {name}={shlex.quote(value)}" for name, value in addresses.settings.items()]
    return "\n".join(["# The servers run until Ctrl-C. In the terminals that use them:", *lines, ""])


if __name__ == "__main__":
    sys.exit(main())
