"""Provide the servers that the pytest plugin uses: servers at given addresses, in containers, or as processes from
jars."""

import os
from contextlib import AbstractContextManager
from pathlib import Path

from saga.testing.processes.servers import Servers
from saga.testing.servers.containers import container_servers, explain_no_containers
from saga.testing.servers.given import COUCHBASE, KAFKA, find_given, given_servers
from saga.testing.servers.jars import jars
from saga.testing.servers.missing import ServersMissing
from saga.testing.servers.world_servers import start_servers


def servers(folder: Path) -> AbstractContextManager[Servers]:
    """Return servers from the first source that is available: addresses in the environment, Docker, or Java and Maven.

    Raises `ServersMissing` with what to install if none is available.
    """
    if find_given(os.environ) is not None:
        return given_servers(folder)
    no_containers = explain_no_containers()
    if no_containers is None:
        return container_servers(folder)
    try:
        jars()
    except ServersMissing as why:
        raise ServersMissing(f"{why}; or {KAFKA} and {COUCHBASE} with addresses; or Docker ({no_containers})") from why
    return start_servers(folder)
