"""Images for machines that reach no image registry: a base by debootstrap, Kafka and Couchbase's test server from their
jars, and wheels that are fetched outside."""

import os
import shutil
import sys
from pathlib import Path

import click

from saga.testing.servers.jars import jars
from saga.testing.servers.missing import ServersMissing
from tests.compose.engine import INSTALL, CommandFailed, Engine, NoEngine, run

ROOT = Path(__file__).parents[2]
FILES = Path(__file__).with_name("images")
WHEELS = ROOT / "build" / "wheels"
LOCK = ROOT / "requirements-servers.lock"
PACKAGES = "python3,python3-venv,ca-certificates,default-jre-headless"
SERVERS = "saga-stand-in/servers"
OS_RELEASE = Path("/etc/os-release")
BASE_S_MAX, WHEELS_S_MAX, BUILD_S_MAX = 900.0, 600.0, 600.0
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")


def build_servers(engine: Engine, folder: Path) -> str:
    """The image with both servers is there; the image that it is made of. Raises `NoEngine` or `CommandFailed`."""
    base = _base(engine, folder)
    context = folder / "servers"
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(FILES, context)
    try:
        shutil.copytree(jars(), context / "libs")
    except ServersMissing as why:
        raise NoEngine(str(why)) from why
    engine.build("--build-arg", f"BASE={base}", "--tag", SERVERS, context, within_s=BUILD_S_MAX)
    shutil.rmtree(context)
    return base


def fetch_wheels(engine: Engine, base: str) -> None:
    """Fetch the packages that services need, for the Python of the image `base`, in `build/wheels`. Raises
    `CommandFailed`."""
    shutil.rmtree(WHEELS, ignore_errors=True)
    output = engine.docker(
        "run", "--rm", base, "python3", "-c",
        "import platform; print(*platform.python_version_tuple()[:2], platform.machine())",
    )  # fmt: skip
    major, minor, machine = output.split()
    platforms = [option for name in PLATFORMS for option in ("--platform", f"{name}_{machine}")]
    run(
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes",
        "--only-binary=:all:", "--no-deps", "--python-version", f"{major}.{minor}", *platforms, "--dest", WHEELS,
        "--requirement", LOCK,
        within_s=WHEELS_S_MAX,
    )  # fmt: skip


def _base(engine: Engine, folder: Path) -> str:
    """A small Debian with Python and Java, of the release that this machine has."""
    release = _os_release()["VERSION_CODENAME"]
    name = f"saga-stand-in/base:{release}"
    if engine.has_image(name):
        return name
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise NoEngine(f"only root can make an image of this machine's packages, with debootstrap: {INSTALL}")
    click.echo(f"making the image {name} from this machine's package source, once: about a minute")
    root = folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    try:
        site, components = _package_source(release)
        run(
            "debootstrap", "--variant=minbase", f"--components={components}", f"--include={PACKAGES}", release, root,
            site,
            within_s=BASE_S_MAX,
        )  # fmt: skip
        packed = folder / "root.tar"
        run("tar", "-C", root, "-cf", packed, ".", within_s=BASE_S_MAX)
        engine.docker("import", packed, name, within_s=BASE_S_MAX)
        packed.unlink()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return name


def _package_source(release: str) -> tuple[str, str]:
    """Address from which this machine has its packages, and their components."""
    lines = run("apt-get", "indextargets", "--format", "$(RELEASE) $(SITE) $(COMPONENT)", "Created-By: Packages")
    found = [line.split() for line in lines.splitlines()]
    ours = [(site, component) for name, site, component in found if name == release]
    if not ours:
        raise CommandFailed(f"apt knows no package source of {release}: apt-get update")
    site = ours[0][0]
    return site, ",".join(dict.fromkeys(component for at, component in ours if at == site))


def _os_release() -> dict[str, str]:
    lines = OS_RELEASE.read_text("utf-8").splitlines()
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}
