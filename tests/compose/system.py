"""The containers of `docker-compose.yml`: brought up, killed, cut off, frozen, brought back, and taken down."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.compose.engine import Engine, now_s, pause, run, succeeds

ROOT = Path(__file__).parents[2]
PROJECT = "saga-compose-test"
NETWORK = f"{PROJECT}_default"
UP_S_MAX, DOWN_S_MAX, READY_S_MAX = 300.0, 120.0, 120.0
LOOK_S = 0.5
SERVICES = ("order", "payment", "inventory", "shipping")
IS_READY = 'import urllib.request as web; web.urlopen("http://127.0.0.1:8080/health/ready", timeout=3)'


class NotReady(Exception):
    """The system did not come up, or did not come back."""


@dataclass(frozen=True, slots=True)
class System:
    """One project of the engine; `files` are its compose files."""

    engine: Engine
    files: Sequence[str]
    secrets: Path

    def up(self) -> None:
        """Bring everything up, and return when every service is ready. Raises `CommandFailed` or `NotReady`."""
        run("sh", "deploy/secrets.sh", cwd=ROOT, environment={"ORDERS_SECRETS": str(self.secrets)})
        self._compose("up", "--detach", "--no-build", within_s=UP_S_MAX)
        self.wait_until_ready()

    def down(self) -> None:
        """Remove all of it: containers, networks, volumes."""
        self._compose("down", "--volumes", "--remove-orphans", "--timeout", "10", within_s=DOWN_S_MAX)

    def client(
        self,
        *arguments: str,
        stdin: bytes = b"",
        within_s: float = 60,
        entrypoint: str = "saga",
        mount: Mapping[Path, str] = MappingProxyType({}),
    ) -> str:
        """Output of a command that runs beside the services. `mount`: files it may read. Raises `CommandFailed`."""
        volumes = [part for ours, theirs in mount.items() for part in ("--volume", f"{ours}:{theirs}:ro")]
        return self._compose(
            "run", "--rm", "--no-deps", "-T", *volumes, "--entrypoint", entrypoint, "client", *arguments,
            stdin=stdin,
            within_s=within_s,
        )  # fmt: skip

    def logs(self) -> str:
        """Logs of all containers."""
        return self._compose("logs", "--no-color", "--timestamps", within_s=DOWN_S_MAX)

    def containers(self, service: str) -> list[str]:
        """The containers of a service, whether they run or not, in the order in which they were made."""
        labels = {"project": PROJECT, "service": service, "oneoff": "False"}
        filters = [
            part for name, is_ in labels.items() for part in ("--filter", f"label=com.docker.compose.{name}={is_}")
        ]
        return self.engine.docker("ps", "--all", "--quiet", *filters).split()[::-1]

    def inspect(self, container: str, what: str) -> str:
        return self.engine.docker("inspect", "--format", what, container).strip()

    def kill(self, container: str) -> None:
        """SIGKILL, by the engine; it stays dead until `start`."""
        self.engine.docker("kill", container)

    def start(self, container: str) -> None:
        self.engine.docker("start", container)

    def freeze(self, container: str) -> None:
        """It keeps its connections and answers nothing."""
        self.engine.docker("pause", container)

    def thaw(self, container: str) -> None:
        self.engine.docker("unpause", container)

    def cut_off(self, container: str) -> None:
        """It runs, and reaches no other service."""
        self.engine.docker("network", "disconnect", NETWORK, container)

    def join(self, container: str, service: str) -> None:
        """The end of `cut_off`."""
        self.engine.docker("network", "connect", "--alias", service, NETWORK, container)

    def wait_until_ready(self) -> float:
        """Return when every service says that it is ready: how many seconds it took. Raises `NotReady`."""
        began_s = now_s()
        while unready := [name for name in SERVICES if not self._is_ready(name)]:
            if now_s() - began_s > READY_S_MAX:
                raise NotReady(f"after {READY_S_MAX:.0f} s not ready: {', '.join(unready)}")
            pause(LOOK_S)
        return now_s() - began_s

    def _is_ready(self, service: str) -> bool:
        containers = self.containers(service)
        return bool(containers) and all(
            succeeds("docker", "exec", each, "python", "-c", IS_READY, within_s=20) for each in containers
        )

    def _compose(self, *arguments: str, within_s: float, stdin: bytes | None = None) -> str:
        files = [part for name in self.files for part in ("--file", name)]
        return run(
            *self.engine.compose, "--project-name", PROJECT, *files, *arguments,
            within_s=within_s,
            stdin=stdin,
            cwd=ROOT,
            environment={"ORDERS_SECRETS": str(self.secrets)},
        )  # fmt: skip
