"""Contents of a release: the package with its types and its licence, nothing else, and no address of ours."""

import hashlib
import re
import subprocess
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest

from saga.broker.kafka.fetching import CODECS
from tests.packaging.environment import ROOT, Environment, built

APACHE_2_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""Digest of the text as the foundation publishes it: a licence that was edited is another one."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(built(tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return BytesParser().parsebytes(wheel.read(name))


def test_the_wheel_is_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "saga").rglob("*.py")}
    folders = ("choreography/templates", "scaffold/templates", "monitor/web/templates", "monitor/web/assets")
    there = [path for folder in folders for path in (ROOT / "saga" / folder).rglob("*") if path.is_file()]
    templates = {path.relative_to(ROOT).as_posix() for path in there}
    assert files == {*modules, *templates, "saga/py.typed", "saga/testing/servers/pom.xml"}


def test_the_wheel_brings_its_licence_whole(wheel: zipfile.ZipFile, metadata: Message) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith("/licenses/LICENSE")]
    assert hashlib.sha256(wheel.read(name)).hexdigest() == APACHE_2_SHA256
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_wheel_declares_the_tested_python_versions(metadata: Message) -> None:
    assert metadata["Requires-Python"] == ">=3.11"
    versions = {text.rpartition(" ")[2] for text in metadata.get_all("Classifier", []) if " 3." in f" {text[-5:]}"}
    tested = re.search(r"^PYTHONS \?= (.+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert tested is not None
    assert versions == set(tested[1].split())


def test_the_kafka_extra_installs_every_codec(metadata: Message) -> None:
    """Others choose how what is read here is compressed. gzip is Python's own."""
    [driver] = [text for text in metadata.get_all("Requires-Dist", []) if text.startswith("aiokafka")]
    named = re.match(r"aiokafka\[([\w,]+)\].*; extra == .kafka.$", driver)
    assert named is not None
    assert {*named[1].split(","), "gzip"} == {decode.__name__.removesuffix("_decode") for decode in CODECS.values()}


@pytest.mark.slow
def test_the_testing_extra_runs_the_tests_of_a_new_project(tmp_path: Path, wheel: zipfile.ZipFile) -> None:
    environment = Environment(tmp_path / "environment")
    environment.install(Path(str(wheel.filename)))
    environment.require("saga-choreography", "testing")
    for folder, command in (
        (tmp_path, [str(environment.bin / "saga"), "new", "project", "shop"]),
        (tmp_path / "shop", [str(environment.python), "-m", "pytest", "-W", "error"]),
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["pyproject.toml", "CONTRIBUTING.md", "SECURITY.md", ".pre-commit-config.yaml"])
def test_the_metadata_of_a_release_contains_no_host_name(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert not re.search(r"\w+://|\w@\w+\.\w", text)


def test_a_commit_is_asked_what_make_check_asks() -> None:
    yaml = pytest.importorskip("yaml")
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0]["hooks"]
    asked = {Path(hook["entry"].split()[0]).name for hook in hooks}
    [recipe] = re.findall(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert asked == set(re.findall(r"\$\(BIN\)/([\w-]+)", recipe))
    assert {hook["language"] for hook in hooks} == {"system"}
