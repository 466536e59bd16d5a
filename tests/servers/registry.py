"""Apicurio Registry: a schema registry with the interface of Confluent's, on a free port of this machine."""

import json
import urllib.request
from pathlib import Path
from typing import Any

from saga.testing.servers.jars import fetch_folder
from saga.testing.servers.server import Server, free_ports

POM = Path(__file__).with_name("registry.pom.xml")
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx400m")
CONFLUENT = "/apis/ccompat/v7"
"""Place of the interface that clients for Confluent's registry know."""
ANSWER_S = 10


def registry_files() -> Path:
    """Folder with the program. Raises `ServersMissing`."""
    return fetch_folder("registry", POM, "dependency:unpack", "-Dunpacked={folder}")


class RegistryServer:
    """One registry; what is registered lies in a file, so it is there again after `kill` and `restart`."""

    def __init__(self, url: str, server: Server | None) -> None:
        self.url = url
        """Address of the interface of Confluent's registry."""
        self._server = server

    @classmethod
    def start(cls, folder: Path, *, while_locked: Path | None = None) -> "RegistryServer":
        """A running one; its data and its log are in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        url = f"http://127.0.0.1:{port}{CONFLUENT}"
        (jar,) = registry_files().glob("apicurio-registry-app-*-runner.jar")
        options = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": port,
            "apicurio.datasource.url": f"jdbc:h2:file:{folder.resolve() / 'data'}",
        }
        command = ["java", *JVM, *(f"-D{name}={value}" for name, value in options.items()), "-jar", str(jar)]
        server = Server("registry", command, folder, is_ready=lambda: registry_answers(url))
        server.start(while_locked=while_locked)
        return cls(url, server)

    @property
    def _own(self) -> Server:
        assert self._server is not None, "no test may stop the registry that all share: start one of your own"
        return self._server

    def kill(self) -> None:
        """End it without a word."""
        self._own.kill()

    def restart(self) -> None:
        """Start it again, on the same port and with what was registered."""
        self._own.start()

    def pause(self) -> None:
        """Freeze it: it takes connections and answers nothing."""
        self._own.pause()

    def resume(self) -> None:
        self._own.resume()

    def ask(self, path: str, body: object = None, method: str | None = None) -> Any:
        """Answer to a request: JSON, to a place below `url`. Raises `urllib.error.HTTPError`."""
        return _ask(f"{self.url}{path}", body, method)

    def register(self, subject: str, schema: object) -> int:
        """Register an Avro schema, which gives its id."""
        id_: int = self.ask(f"/subjects/{subject}/versions", {"schema": json.dumps(schema)})["id"]
        return id_

    def is_compatible(self, subject: str, schema: object, mode: str) -> bool:
        """Ask whether the registry would take a schema for that subject in a mode, as `FULL_TRANSITIVE`."""
        self.ask(f"/config/{subject}", {"compatibility": mode}, "PUT")
        asked = {"schema": json.dumps(schema)}
        compatible: bool = self.ask(f"/compatibility/subjects/{subject}/versions", asked)["is_compatible"]
        return compatible


def registry_answers(url: str) -> bool:
    """True if it lists its subjects."""
    try:
        _ask(f"{url}/subjects")
    except (OSError, ValueError):
        return False
    return True


def _ask(url: str, body: object = None, method: str | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return json.loads(answer.read())
