"""`saga changes`: what brings changes of documents to services."""

import json

import click

from saga import wiring
from saga.administration.connectors import collections_changed, connector_of
from saga.cli.options import broker_option, stores_option
from saga.cli.printing import tell
from saga.config import Settings
from saga.errors import ConfigurationError


@click.group()
def changes() -> None:
    """Bring changes of documents to the services that take them.

    \b
    Exit code 0: printed.
    Exit code 2: asked wrongly; what to do is on standard error.
    """


@changes.command()
@click.argument("modules", nargs=-1, required=True)
@click.option("--user", metavar="NAME", help="User of Couchbase for it; left out: as the service is called.")
@broker_option
@stores_option
def connector(modules: tuple[str, ...], user: str | None, broker: str | None, store: str | None) -> None:
    """Print the configuration of Couchbase's Kafka connector for each service of MODULES that takes changes: JSON as
    Kafka Connect takes it at /connectors, one document a service.

    The password is not in it: Kafka Connect has it in its variable KAFKA_COUCHBASE_PASSWORD. The user needs the role
    data_dcp_reader on the collections, and Kafka Connect may write the topics, which saga topics apply makes.

    \b
    saga changes connector services.intake | curl -d @- -H content-type:application/json http://connect:8083/connectors

    \b
    Exit code 0: printed.
    Exit code 2: asked wrongly, or no connector could bring these changes; what to do is on standard error.
    """
    settings = Settings.from_environment(broker=broker, store=store)
    services = wiring.load_services(modules)
    taking = [each for each in services if collections_changed(each)]
    if not taking:
        raise ConfigurationError("there is nothing to bring:", [f"{each.name!r} takes no Change" for each in services])
    for made in [connector_of(each, settings, user) for each in taking]:
        tell(*json.dumps(made._asdict(), indent=2).splitlines())
