"""The users who run the commands of the pages, as docs/runbooks/README.md says, with the rights that `saga access`
prints and no others."""

import re
from collections.abc import Iterator, Mapping, Sequence

import yaml

from tests.docs.markdown import ROOT
from tests.runbooks.page import PAGES, Place
from tests.servers.rights import PASSWORD, Guarded, Right, rights_in

APPLICATION = "application"
"""User of an application, which is no part of the deployment."""
_ROW = re.compile(r"^\| (?P<commands>`saga [^|]+) \| `(?P<who>\w+)` \| (?P<where>[^|]+) \|", re.MULTILINE)
_POD = re.compile(r"deploy/(\w+)")


def users_of_commands() -> Mapping[str, tuple[str, str]]:
    """User of Kafka and `--for` of `saga access`, by the first words of a command."""
    found = {}
    for row in _ROW.finditer((PAGES / "README.md").read_text("utf-8")):
        pod = _POD.search(row["where"])
        user = _kafka_user_of(pod[1]) if pod else APPLICATION
        for command in re.findall(r"`saga ([^`]+)`", row["commands"]):
            found[command] = user, row["who"]
    return found


def _kafka_user_of(deployment: str) -> str:
    """User in the manifest of a deployment."""
    for file in sorted((ROOT / "docs" / "deploy").glob("*.yaml")):
        for one in yaml.safe_load_all(file.read_text("utf-8")):
            if (one["kind"], one["metadata"]["name"]) == ("Deployment", deployment):
                (container,) = one["spec"]["template"]["spec"]["containers"]
                (user,) = (each["value"] for each in container["env"] if each["name"] == "SAGA_KAFKA_USERNAME")
                return str(user)
    raise AssertionError(f"docs/deploy has no Deployment {deployment}")


def rights_of_users(place: Place) -> Sequence[Right]:
    """Rights that `saga access` prints there for these users."""
    return [right for user, who in sorted({*users_of_commands().values()}) for right in _printed(place, user, who)]


def _printed(place: Place, user: str, who: str) -> Iterator[Right]:
    status, printed = place.call(f"saga access kafka services.payment --for {who} --principal User:{user}")
    assert status == 0, printed
    for line in printed.splitlines():
        if not line.startswith("#"):
            yield from rights_in(line)


def run_as_users(place: Place, guarded: Guarded) -> None:
    """Have the commands in this place run on this broker, each as its user."""
    password = place.folder / "password"
    password.write_text(PASSWORD)
    place.extra = {
        "SAGA_BROKER": f"kafka://{guarded.address}",
        "SAGA_KAFKA_SASL": "plain",
        "SAGA_KAFKA_CLEARTEXT": "true",
        "SAGA_KAFKA_PASSWORD_FILE": str(password),
        "SAGA_KAFKA_REPLICATION": "1",
        "SAGA_KAFKA_MIN_INSYNC": "1",
    }
    place.commands_run_as({words: user for words, (user, _) in users_of_commands().items()})
