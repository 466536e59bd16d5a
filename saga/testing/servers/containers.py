"""Start Kafka and Couchbase in containers with `testcontainers`, if that package and Docker are installed.

This package does not depend on `testcontainers`. Couchbase is set up through its REST interface with one node and one
bucket. The ports that Docker has mapped are registered as external addresses. The SDK selects these by itself when it
connects to one of them.
"""

import base64
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from saga.testing.processes.servers import ServerAddresses
from saga.testing.servers.faultless import FaultlessServers
from saga.testing.servers.server import ServerFailed

COUCHBASE_IMAGE = "couchbase/server:enterprise-7.6.5"
BUCKET, USERNAME, PASSWORD = "saga", "saga", "secret-of-tests"
KV_PORT, REST_PORT = 11210, 8091
DOCKER_S_MAX, READY_S_MAX, ANSWER_S_MAX, LOOK_S = 10.0, 120.0, 10.0, 0.5


def explain_no_containers() -> str | None:
    """Explain why no container can be started here; `None` if one can."""
    if shutil.which("docker") is None:
        return "no docker on this machine"
    if find_spec("testcontainers") is None:
        return "the package testcontainers is not installed: pip install testcontainers"
    try:
        subprocess.run(["docker", "info"], check=True, timeout=DOCKER_S_MAX, capture_output=True)
    except (OSError, subprocess.SubprocessError):
        return "the Docker daemon does not answer: docker info"
    return None


@contextmanager
def container_servers(folder: Path) -> Iterator[FaultlessServers]:
    """Start a new, empty Kafka and Couchbase for the duration of the block. Raises `ServerFailed`."""
    with ExitStack() as stack:
        # Imported by name, because the package is optional and type checkers do not know it here.
        kafka = stack.enter_context(import_module("testcontainers.kafka").KafkaContainer().with_kraft())
        couchbase = import_module("testcontainers.core.container").DockerContainer(COUCHBASE_IMAGE)
        stack.enter_context(couchbase.with_exposed_ports(REST_PORT, KV_PORT))
        yield FaultlessServers(
            ServerAddresses(
                kafka=kafka.get_bootstrap_server(),
                couchbase=_set_up(couchbase),
                bucket=BUCKET,
                username=USERNAME,
                password=PASSWORD,
            )
        )


def _set_up(container: Any) -> str:
    """Set up one node of Couchbase with a bucket. Return its address once the bucket is ready."""
    host = container.get_container_host_ip()
    rest, kv = (int(container.get_exposed_port(port)) for port in (REST_PORT, KV_PORT))
    url = f"http://{host}:{rest}"
    _poll(f"{url}/pools")
    cluster: dict[str, str | int] = {
        "services": "kv",
        "memoryQuota": 256,
        "username": USERNAME,
        "password": PASSWORD,
        "port": "SAME",
    }
    _ask(f"{url}/clusterInit", cluster)
    _ask(f"{url}/node/controller/setupAlternateAddresses/external", {"hostname": host, "kv": kv, "mgmt": rest}, "PUT")
    _ask(f"{url}/pools/default/buckets", {"name": BUCKET, "ramQuota": 100, "replicaNumber": 0})
    _poll(f"{url}/pools/default/buckets/{BUCKET}", '"status":"healthy"')
    return f"couchbase://{host}:{kv}"


def _poll(url: str, expected: str = "") -> None:
    """Wait until the URL answers with the expected text. Raises `ServerFailed` if it does not in time."""
    until_s = time.monotonic() + READY_S_MAX
    while True:
        try:
            answer = _ask(url)
            if expected in answer:
                return
        except OSError as why:
            answer = str(why)
        if time.monotonic() > until_s:
            raise ServerFailed(f"Couchbase did not become ready: {url}: {answer[-1000:]}")
        time.sleep(LOOK_S)  # noqa: TID251 - between two requests to a server that starts


def _ask(url: str, form: dict[str, str | int] | None = None, method: str | None = None) -> str:
    data = None if form is None else urllib.parse.urlencode(form).encode()
    user = base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()
    request = urllib.request.Request(url, data, {"Authorization": f"Basic {user}"}, method=method)
    with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as answer:
        text: str = answer.read().decode()
    return text
