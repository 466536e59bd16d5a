"""The story of `make compose-test`: the system comes up, loses one part after the other, and its books are compared."""

import os
import re
import signal
from collections.abc import Sequence
from typing import Never

import click
import yaml

from tests.compose.customers import Customers
from tests.compose.engine import CommandFailed, Engine, NoEngine, engine, now_s, pause
from tests.compose.faults import Fault, faults
from tests.compose.stand_ins import build_servers, fetch_wheels
from tests.compose.system import ROOT, NotReady, System

FOLDER = ROOT / "build" / "compose"
PUBLIC, STAND_INS = "docker-compose.yml", "docker-compose.stand-ins.yml"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
IMAGE = "saga-orders"
ORDERS = ROOT / "services" / "orders.jsonl"
ORDERS_MAX = 200
PULL_S_MAX, BUILD_S_MAX, PLACED_S_MAX, BALANCED_S_MAX = 600.0, 900.0, 180.0, 180.0
AUDIT_S = 3.0
LOG_LINES = 40


@click.command()
@click.option(
    "--images",
    type=click.Choice(["auto", "public", "stand-ins"]),
    default="auto",
    show_default=True,
    help="Those that users have, or stand-ins made here; auto: stand-ins, if a public one cannot be had.",
)
def main(images: str) -> None:
    """Bring the system up under a container engine, send orders, kill and cut off containers, and audit the books.

    Exits with 1 if the books differ, or the system does not come up or back. A machine without an engine fails as well,
    unless COMPOSE=optional is set.
    """
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, _exit_on_signal)
    FOLDER.mkdir(parents=True, exist_ok=True)
    began_s = now_s()
    try:
        with engine(FOLDER) as found:
            agree = _with_images(found, images)
    except NoEngine as why:
        optional = os.environ.get("COMPOSE") == "optional"
        click.echo(f"\nNOT TESTED: nothing ran in containers.\n{why}", err=True)
        if not optional:
            click.echo("COMPOSE=optional lets this pass on a machine that can have no engine.", err=True)
        raise SystemExit(0 if optional else 1) from None
    except (CommandFailed, NotReady) as why:
        raise click.ClickException(str(why)) from why
    click.echo(f"\n{now_s() - began_s:.0f} s in all; containers, networks and volumes are removed")
    raise SystemExit(0 if agree else 1)


def _exit_on_signal(number: int, _: object) -> Never:
    raise SystemExit(128 + number)


def _with_images(found: Engine, images: str) -> bool:
    """Run the story on public images or on stand-ins; whether the books balance."""
    files, build = [PUBLIC], list[str]()
    if images == "stand-ins" or not _has_public_images(found, required=images == "public"):
        base = build_servers(found, FOLDER)
        fetch_wheels(found, base)
        files, build = [PUBLIC, STAND_INS], ["--build-arg", f"PYTHON={base}", "--build-arg", "PIP_NO_INDEX=1"]
    found.build("--file", DOCKERFILE, *build, "--tag", IMAGE, ROOT, within_s=BUILD_S_MAX)
    system = System(found, files, FOLDER / "secrets")
    system.down()  # what an earlier run may have left that was killed
    try:
        return story(system, stand_ins=STAND_INS in files)
    except (CommandFailed, NotReady):
        click.echo("\n".join(system.logs().splitlines()[-LOG_LINES:]), err=True)
        raise
    finally:
        (FOLDER / "containers.log").write_text(system.logs(), "utf-8")
        system.down()


def _has_public_images(found: Engine, *, required: bool) -> bool:
    """True if all of them are here. Raises `CommandFailed` for one that cannot be had, if they are `required`."""
    try:
        for name in _public_images(found):
            found.pull(name, PULL_S_MAX)
    except CommandFailed as why:
        if required:
            raise
        click.echo(
            f"stand-ins are used: a public image cannot be had.\n  {str(why).splitlines()[-1]}\n"
            "  So Couchbase's server, its users, scopes and durable writes are not tested here."
        )
        return False
    return True


def _public_images(found: Engine) -> Sequence[str]:
    services = yaml.safe_load((ROOT / PUBLIC).read_text("utf-8"))["services"]
    named = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", services[name]["image"]) for name in ("kafka", "couchbase")]
    python = re.search(r"^ARG PYTHON=(.*)$", DOCKERFILE.read_text("utf-8"), re.MULTILINE)
    assert python is not None
    return [python[1], *named]


def story(system: System, *, stand_ins: bool) -> bool:
    """Tell it; whether the books balance."""
    began_s = now_s()
    system.up()
    click.echo(f"everything is up and ready after {now_s() - began_s:.0f} s")
    _check_user(system)
    orders = ORDERS.read_bytes().splitlines()[:ORDERS_MAX]
    planned = list(faults(system, store_forgets=stand_ins))
    if stand_ins:
        click.echo("left out: killing the store, which is a test server and would come back empty")
    share = len(orders) // (2 * len(planned) + 1)
    with Customers(system, orders) as customers:
        for fault in planned:
            customers.wait_until(customers.want(share), PLACED_S_MAX)
            _happens(fault, system, customers, share)
        customers.wait_until(customers.want(len(orders)), PLACED_S_MAX)
    click.echo(f"all {len(orders)} orders are placed; {customers.repeated} batches were sent again")
    (FOLDER / ORDERS.name).write_bytes(b"\n".join(orders))
    return balanced(system, stand_ins=stand_ins)


def _happens(fault: Fault, system: System, customers: Customers, share: int) -> None:
    click.echo(f"{fault.name}, for {fault.lasts_s:.0f} s", nl=False)
    customers.want(share)
    fault.begin()
    try:
        pause(fault.lasts_s)
    finally:
        fault.end()
    click.echo(f"; all ready again {system.wait_until_ready():.1f} s later")


def _check_user(system: System) -> None:
    container = system.containers("payment")[0]
    if int(system.engine.docker("exec", container, "id", "-u")) == 0:
        raise NotReady("the services run as root")


def balanced(system: System, *, stand_ins: bool) -> bool:
    """Print the audit, once the books balance or it is too late for that; whether they do."""
    environment = system.inspect(system.containers("order")[0], "{{range .Config.Env}}{{println .}}{{end}}")
    (store,) = re.findall(r"^SAGA_STORE=(.*)$", environment, re.MULTILINE)
    command = ["-m", "services.audit", "--dir", "/var/lib/saga", "--orders", "/orders.jsonl"]
    command += ["--store", store, "--by-key"] if stand_ins else ["--store", store.removesuffix("order") + "{service}"]
    mount = {FOLDER / ORDERS.name: "/orders.jsonl"}
    until_s = now_s() + BALANCED_S_MAX
    while True:
        try:
            click.echo(f"\n{system.client(*command, entrypoint='python', mount=mount)}", nl=False)
        except CommandFailed as why:
            if now_s() > until_s:
                click.echo(f"\n{why}", err=True)
                return False
            pause(AUDIT_S)
        else:
            return True


if __name__ == "__main__":
    main()
