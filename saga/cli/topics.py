"""`saga topics`: the topics of services, as their contracts want them."""

import asyncio
from collections.abc import Sequence

import click

from saga.cli.options import broker_option
from saga.cli.printing import tell, tell_json
from saga.cli.tail import tail
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.ops import topic_plans
from saga.ops.sources import missing_broker_file, open_administration
from saga.ops.topic_plans import TopicStep, collect_needs
from saga.support.clock import SystemClock

WORDS = {"create": "create", "retention": "change", "dates": "change", "partitions": "change", "nothing": "as it is"}
DONE = {"create": "created", "retention": "changed", "dates": "changed", "partitions": "changed", "nothing": "as it is"}


@click.group()
def topics() -> None:
    """Plan, create and read topics.

    The contracts say of each topic how many partitions it has and how long its records are kept (topic.json, beside the
    schemas). Dead letters, on <service>.dead, are kept for ever.

    \b
    Exit code 0: all topics are so, or can be made so.
    Exit code 1: something is refused.
    Exit code 2: asked wrongly, or the broker cannot be used.
    """


@topics.command("plan")
@click.argument("modules", nargs=-1, required=True)
@broker_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def plan_(modules: tuple[str, ...], broker: str | None, as_json: bool) -> None:
    """Tell what `saga topics apply` would do, and do nothing.

    For example `saga topics plan services.payment services.order`.

    \b
    Exit code 0: told; it can be done, or all is as wanted.
    Exit code 1: something of it would be refused; each line says why.
    Exit code 2: asked wrongly, or the broker cannot be used.
    """
    _tell(asyncio.run(_steps(modules, broker, apply=False)), as_json, applied=False)


@topics.command("apply")
@click.argument("modules", nargs=-1, required=True)
@broker_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def apply_(modules: tuple[str, ...], broker: str | None, as_json: bool) -> None:
    """Make the topics as the contracts want them. Again and again, at any time: what is so stays so.

    Missing topics are made, records are kept for as long as the contracts say, and the broker dates them. More
    partitions are given only while nobody reads or publishes there and everything has been handled, because keys change
    their partition; fewer never. Stop other programs that publish there yourself: nobody knows of them.

    \b
    Exit code 0: all topics are as the contracts want them.
    Exit code 1: something is refused, each line says why; nothing was changed.
    Exit code 2: asked wrongly, or the broker cannot be used.
    """
    steps = asyncio.run(_steps(modules, broker, apply=True))
    _tell(steps, as_json, applied=not any(step.refused for step in steps))


async def _steps(modules: Sequence[str], address: str | None, *, apply: bool) -> list[TopicStep]:
    settings = Settings.from_environment(broker=address)
    wanted = collect_needs(wiring.load_services(modules), settings.told)
    if not apply and missing_broker_file(settings) is not None:  # to ask it would make it
        return topic_plans.plan([each.topic for each in wanted.values()], {}, {}, can_grow=False)
    async with open_administration(settings, SystemClock()) as broker:
        steps = await topic_plans.plan_topics(wanted, broker)
        if apply:
            await topic_plans.apply(steps, broker)
        return steps


def _tell(steps: Sequence[TopicStep], as_json: bool, *, applied: bool) -> None:
    if as_json:
        told = [
            {"topic": step.topic.name, "doing": step.doing, "says": step.says, "refused": step.refused}
            for step in steps
        ]
        tell_json({"applied": applied, "topics": told})
    else:
        _print(steps, applied)
    if any(step.refused for step in steps):
        raise click.exceptions.Exit(1)


def _print(steps: Sequence[TopicStep], applied: bool) -> None:
    width = max(len(step.topic.name) for step in steps)
    words = DONE if applied else WORDS
    for step in steps:
        word = "refused" if step.refused else words[step.doing]
        refused = f": {step.refused}" if step.refused else ""
        tell(f"{word:<8}  {step.topic.name:<{width}}  {step.says}{refused}")


topics.add_command(tail)
