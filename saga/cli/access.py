"""`saga access`: print commands that grant the rights and roles that services and people need."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

import click

from saga.cli.options import broker_option, stores_option
from saga.cli.printing import print_json, print_lines
from saga.clients.subscription import check_group
from saga.configuration import wiring
from saga.configuration.settings import address_given, transition_topic_given
from saga.ops import access as needed
from saga.ops.access import GrantedAccess, Who


@click.group()
def access() -> None:
    """Print the broker and store permissions that services and people need.

    They follow from what the services declare: `saga run` checks for the same ones when it starts. The command contacts
    no server and changes nothing. Grant permissions again after each release that consumes or emits other events.

    \b
    Exit code 0: printed.
    Exit code 2: wrong usage; standard error says what to do.
    """


@access.command()
@click.argument("modules", nargs=-1, required=True)
@click.option(
    "--for",
    "who",
    type=click.Choice(["service", "client", "operator", "administrator", "doctor"]),
    default="service",
    show_default=True,
    help="service: saga run. client: Client, saga publish. operator: saga sagas list and show, saga dead, "
    "saga control, saga offsets show. "
    "administrator: saga topics, saga offsets reset. doctor: saga doctor, in addition to what the service needs.",
)
@click.option("--event", "events", multiple=True, metavar="NAME", help="With --for client: only these events.")
@click.option(
    "--group", "groups", multiple=True, metavar="NAME", help="With --for client: consumer group in which it listens."
)
@click.option("--principal", metavar="NAME", help="One user for everything, as Kafka names it: User:payment.")
@broker_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of commands.")
def kafka(  # one parameter for each option of the command
    modules: tuple[str, ...],
    who: Who,
    events: tuple[str, ...],
    groups: tuple[str, ...],
    principal: str | None,
    broker: str | None,
    as_json: bool,
) -> None:
    """Print the ACLs that the services declared in MODULES need, as commands of Kafka's own tool.

    \b
    saga access kafka services.payment services.order
        one user for each service, User:payment and User:order
    saga access kafka services.payment services.order --principal User:shop
        one user for all, for a process that runs both
    saga access kafka services.order --for client --event OrderPlaced
        a client that publishes this event; without --event also one that waits for outcomes, and listens to events for
        external consumers
    saga access kafka services.shipping --for client --event ShipmentDispatched --group mailer
        a client that listens with client.listen(ShipmentDispatched, group="mailer")

    \b
    Exit code 0: printed.
    Exit code 2: wrong usage; standard error says what to do.
    """
    if events and who != "client":
        raise click.UsageError("--event needs --for client: services publish what they declare")
    if groups and who != "client":
        raise click.UsageError("--group needs --for client: the group of a service has its name")
    if principal is not None and not all(principal.partition(":")):
        raise click.UsageError(f"--principal {principal}: name it as Kafka does, for example User:payment")
    services = wiring.load_services(modules)
    for group in groups:
        check_group(group)
    address = address_given("broker", broker)
    client = needed.ClientUse(events, groups)
    _print_access(
        needed.list_kafka_access(services, who, address, principal, client, transition_topic_given()), as_json
    )


@access.command()
@click.argument("modules", nargs=-1, required=True)
@click.option(
    "--for",
    "who",
    type=click.Choice(["service", "operator"]),
    default="service",
    show_default=True,
    help="service: saga run. operator: reads only, for saga sagas list and saga sagas show.",
)
@click.option("--user", metavar="NAME", help="One user for everything.")
@click.option(
    "--form",
    type=click.Choice(["cli", "sql"]),
    default="cli",
    show_default=True,
    help="couchbase-cli, or statements of SQL++, for a cluster with the query service.",
)
@stores_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of commands.")
def couchbase(  # one parameter for each option of the command
    modules: tuple[str, ...],
    who: Literal["service", "operator"],
    user: str | None,
    form: Literal["cli", "sql"],
    store: str | None,
    as_json: bool,
) -> None:
    """Print the roles that the services declared in MODULES need, each on one collection.

    \b
    saga access couchbase services.payment --store couchbase://db1/shop/{service}
        one user for each service
    saga access couchbase services.payment services.order --for operator --store couchbase://db1/shop/{service}
        one user who reads all of them and writes nothing

    With couchbase-cli the user has exactly these roles afterwards. The commands take its password from the variable
    PASSWORD, and the administrator's name and password from CB_REST_USERNAME and CB_REST_PASSWORD. Roles on
    collections need the Enterprise Edition.

    \b
    Exit code 0: printed.
    Exit code 2: wrong usage; standard error says what to do.
    """
    services = wiring.load_services(modules)
    _print_access(needed.list_couchbase_access(services, who, address_given("store", store), user, form), as_json)


def _print_access(granted: Sequence[GrantedAccess], as_json: bool) -> None:
    if as_json:
        print_json({"access": [asdict(each) for each in granted]})
        return
    for each in granted:
        print_lines(f"# {each.user}: {each.who} of {', '.join(each.services)}", *each.commands)
