"""`saga changes`: configure the connector that delivers document changes to services."""

import asyncio
import json
from collections.abc import Sequence

import click

from saga.cli.options import broker_option, stores_option
from saga.cli.printing import print_lines
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.errors import ConfigurationError
from saga.ops import connectors
from saga.ops.connectors import list_watched_collections, make_connector
from saga.support.clock import SystemClock


@click.group()
def changes() -> None:
    """Configure the connector that brings document changes to services.

    \b
    Exit code 0: printed, or done.
    Exit code 2: wrong usage; standard error says what to do.
    """


@changes.command()
@click.argument("modules", nargs=-1, required=True)
@click.option("--user", metavar="NAME", help="Couchbase user of the connector. Default: the name of the service.")
@broker_option
@stores_option
def connector(modules: tuple[str, ...], user: str | None, broker: str | None, store: str | None) -> None:
    """Print the configuration of Couchbase's Kafka connector for each service of MODULES that consumes changes.

    It is JSON for Kafka Connect's /connectors, one document per service.

    The password is not in it: Kafka Connect takes it from the variable KAFKA_COUCHBASE_PASSWORD. The user needs the
    role data_dcp_reader on the collections. Kafka Connect needs the right to write to the topics, which `saga topics
    apply` creates.

    \b
    saga changes connector services.intake | curl -d @- -H content-type:application/json http://connect:8083/connectors

    \b
    Exit code 0: printed.
    Exit code 2: wrong usage, or no connector can bring these changes; standard error says what to do.
    """
    settings = Settings.from_environment(broker=broker, store=store)
    services = wiring.load_services(modules)
    taking = [each for each in services if list_watched_collections(each)]
    if not taking:
        raise ConfigurationError("no connector is needed:", [f"{each.name!r} takes no Change" for each in services])
    for made in [make_connector(each, settings, user) for each in taking]:
        print_lines(*json.dumps(made._asdict(), indent=2).splitlines())


@changes.command()
@click.argument("module")
@click.option(
    "--collection", "collections", metavar="NAME", multiple=True, required=True, help="Collection; may be repeated."
)
@stores_option
def drop(module: str, collections: tuple[str, ...], store: str | None) -> None:
    """Stop recording changes of a collection in the store of the service in MODULE.

    Call it once no release of the service consumes these changes. Recorded changes that are not on the topic yet are
    dropped, too. Services never do this by themselves: another release of the service may be running at the same time,
    or may be deployed again.

    \b
    saga changes drop services.intake --collection returns

    \b
    Exit code 0: done.
    Exit code 2: wrong usage; standard error says what to do.
    """
    service, *others = wiring.load_services((module,))
    if others:
        raise ConfigurationError(
            "nothing was dropped:", [f"{module} declares more than one service: name a module with one"]
        )
    asyncio.run(_drop(service, collections, Settings.from_environment(store=store)))
    for collection in collections:
        print_lines(f"changes of {collection} are no longer recorded for {service.name}")


async def _drop(service: Declared, collections: Sequence[str], settings: Settings) -> None:
    async with wiring.open_store(service.name, SystemClock(), settings) as store:
        await connectors.stop_watching(service, collections, store)
