"""Bugs that unusual choreographies have shown in the simulated world, each as small as possible."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from msgspec.structs import replace as struct_replace

from saga import Retry, Saga, Service
from saga.messaging import envelope
from saga.progress import decisions, journal
from saga.progress.compensation import complete_compensation
from saga.progress.document import CompensableResult, Intent, SelfConsumedEvent
from saga.progress.handlers import CompensationRole, HandlerRoles
from saga.progress.journal import TransitionDetails, WriteContext
from saga.testing import World, faults, simulate, trial
from saga.testing.fault_plans import Chance, Faults, RandomPlan
from saga.testing.simulation.reports import timeline
from saga.testing.simulation.simulated_world import SimulatedWorld
from saga.testing.world import CheckFailed
from services.payment.events import OrderPlaced
from tests.engine.real_worker import an_order
from tests.mutants.events import Kneaded, MenuChosen, PartyCalledOff, PartyPlanned, PartyWithdrawn, Tasted
from tests.mutants.fake_rooms import Rooms
from tests.mutants.party_services import LARDER, Larder
from tests.progress.pieces import a_message, a_role, blank

DISHES = ("soup", "fish", "cake", "figs", "wine")


@dataclass(frozen=True)
class Menus:
    """In the order in which they were handled."""

    dishes: tuple[str, ...] = ()


cook = Service("cook", state=Menus)


@cook.handler
async def plan(planned: PartyPlanned) -> None:
    return None


@cook.handler(repeats=MenuChosen)
async def choose(menu: MenuChosen, saga: Saga[Menus]) -> None:
    saga.state = replace(saga.state, dishes=(*saga.state.dishes, menu.dish))


def a_party(id_: str = "p") -> PartyPlanned:
    return PartyPlanned(party_id=id_, guests=1, notes=0, flour=1, hall="ball", menu="")


def some_dishes_before_the_party(world: World) -> None:
    """The menus lie in another topic than the party: two workers have them."""
    world.start(cook)
    world.publish(*(MenuChosen(party_id="p", dish=dish) for dish in DISHES[:3]))
    world.run_for(timedelta(seconds=1))
    world.publish(a_party(), *(MenuChosen(party_id="p", dish=dish) for dish in DISHES[3:]))
    world.run_until_quiet()


@simulate(seeds=60)
def test_a_message_does_not_overtake_messages_pending_for_the_start_of_the_saga(world: World) -> None:
    some_dishes_before_the_party(world)
    assert isinstance(world, SimulatedWorld)
    progress = world.progress("cook", "p")
    assert progress is not None
    assert progress.state == {"dishes": list(DISHES)}


def test_the_kit_finds_a_message_that_overtakes_pending_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "is_other_message_first", lambda p, role, message: False)

    def seen(seed: int) -> str:
        with SimulatedWorld(seed, guarded=False) as world:
            some_dishes_before_the_party(world)
            try:
                world.verify()
            except CheckFailed as why:
                return why.invariant
            return ""

    assert {seen(seed) for seed in range(60)} == {"", "in order"}


@pytest.mark.parametrize("planned", [Faults(), faults.of("full disk", rate=0.3)], ids=["calm", "full disk"])
def test_events_published_later_are_behind_earlier_ones_despite_faults(planned: Faults) -> None:
    for seed in range(10):
        with SimulatedWorld(seed, RandomPlan(planned, Chance(seed)), guarded=False) as world:
            world.start(cook)
            world.publish(a_party(), *(MenuChosen(party_id="p", dish=dish) for dish in DISHES[:3]))
            world.run_for(timedelta(milliseconds=1))
            world.publish(*(MenuChosen(party_id="p", dish=dish) for dish in DISHES[3:]))
            world.run_until_quiet()
            progress = world.progress("cook", "p")
            assert progress is not None
            assert progress.state == {"dishes": list(DISHES)}


baker = Service("kitchen", retention=timedelta(minutes=30))


@baker.resource
async def mill() -> AsyncIterator[Rooms]:
    yield Rooms()


@baker.handler
async def knead(planned: PartyPlanned, mill: Rooms, saga: Saga) -> Kneaded:
    return Kneaded(party_id=planned.party_id, flour=await saga.step(mill.price, "flour"))


def run_a_saga_again_after_its_retention(world: SimulatedWorld) -> None:
    world.start(baker, use=[Rooms()])
    world.publish(a_party())
    world.run_for(timedelta(hours=2))
    for worker in ("kitchen-1", "kitchen-2"):  # else they may still have it in their caches
        world.disturb(worker, "crash")
    world.run_for(timedelta(minutes=1))
    world.publish(a_party())
    world.run_until_quiet()


def test_a_saga_that_starts_again_after_its_retention_may_emit_another_result(world: World) -> None:
    assert isinstance(world, SimulatedWorld)
    run_a_saga_again_after_its_retention(world)
    world.verify()
    results = [r for r in world.cluster.log if envelope.type_of(r) == "Kneaded"]
    assert len(results) == len({r.value for r in results}) == 2


host, pastry = Service("host"), Service("kitchen")


@host.handler
async def call_off(planned: PartyPlanned, withdrawn: PartyWithdrawn) -> PartyCalledOff:
    return PartyCalledOff(party_id=withdrawn.party_id, reason=withdrawn.reason)


@pastry.resource
async def oven() -> AsyncIterator[Rooms]:
    yield Rooms()


@pastry.handler
async def mix(planned: PartyPlanned) -> Kneaded:
    return Kneaded(party_id=planned.party_id, flour=planned.flour)


@pastry.handler(repeats=Kneaded, retry=Retry(attempts_max=1))
async def fold(kneaded: Kneaded, oven: Rooms, saga: Saga) -> Kneaded:
    """Takes what it says itself."""
    await saga.step(oven.rent, saga.idempotency_key("tray"), f"tray {kneaded.flour}", 1, "")
    if not kneaded.flour:
        raise OSError("nothing left to fold")
    return Kneaded(party_id=kneaded.party_id, flour=kneaded.flour - 1)


@pastry.compensation(fold)
async def unfold(called_off: PartyCalledOff, kneaded: Kneaded, oven: Rooms, saga: Saga) -> None:
    await saga.step(oven.announce, saga.idempotency_key("unfold"), str(kneaded.flour))


def a_party_whose_last_dough_is_a_dead_letter(world: World) -> None:
    world.start(host, pastry, use=[Rooms()])
    world.publish(replace(a_party(), flour=2))
    world.run_for(timedelta(seconds=1))
    world.publish(PartyWithdrawn(party_id="p", reason="rain"))
    world.run_until_quiet()


@simulate(seeds=20, faults=faults.of("crash", rate=0.05))
def test_the_steps_of_a_dead_run_are_escalated_when_its_event_is_self_consumed(world: World) -> None:
    a_party_whose_last_dough_is_a_dead_letter(world)
    assert isinstance(world, SimulatedWorld)
    letters = [dict(r.headers) for r in world.cluster.log if r.topic == "kitchen.dead"]
    (stands,) = {letter["dead_call"] for letter in letters if letter["dead_what"] == b"escalation"}
    assert re.fullmatch(rb'step rent\("tray-[0-9a-f]+", "tray 0", 1, ""\) ran', stands or b"")


def test_a_timeline_names_the_running_compensation_and_the_dead_run() -> None:
    with SimulatedWorld(guarded=False) as world:
        a_party_whose_last_dough_is_a_dead_letter(world)
        lines = [line.split("  p: ")[-1] for line in timeline(world)]
    assert lines.count("fold begins step rent") == 3
    assert lines.count("unfold begins step announce") == 2
    assert lines.count("fold is dead: its effects are corrected, or reported to a person") == 1


def test_a_timeline_shows_a_saga_that_starts_again_after_its_retention() -> None:
    with SimulatedWorld(guarded=False) as world:
        run_a_saga_again_after_its_retention(world)
        assert sum("knead begins step price" in line for line in timeline(world)) == 2


def test_the_kit_finds_a_dead_run_whose_steps_were_not_escalated(monkeypatch: pytest.MonkeyPatch) -> None:
    def either(intent: Intent, handler: str, cause: str, *, undo: bool) -> bool:
        return intent.handler == handler and intent.cause == cause

    monkeypatch.setattr(journal, "is_intent_of", either)
    with SimulatedWorld(guarded=False) as world:
        a_party_whose_last_dough_is_a_dead_letter(world)
        with pytest.raises(
            CheckFailed,
            match="compensated: step rent of fold is in effect since transition 3, and was not reported to an operator",
        ):
            world.verify()


grill = Service("kitchen")
grill.document(Larder, "larders")


@grill.resource
async def fire() -> AsyncIterator[Rooms]:
    yield Rooms()


@grill.handler(repeats=MenuChosen, retry=Retry(attempts_max=1))
async def cook_it(menu: MenuChosen, planned: PartyPlanned, fire: Rooms, saga: Saga) -> Tasted:
    await saga.step(fire.rent, saga.idempotency_key("spit"), menu.dish, 1, "")
    await saga.update(Larder, LARDER, Larder.pour)
    if menu.dish == "figs":
        raise OSError("they burn")
    return Tasted(party_id=menu.party_id, dish=menu.dish)


@grill.compensation(cook_it)
async def throw_away(called_off: PartyCalledOff, tasted: Tasted) -> None:
    return None


@simulate(seeds=60, faults=faults.of("crash", "lost answer", "delay", rate=0.03, target="kitchen"))
def test_no_message_is_lost_that_comes_during_the_abort_of_a_dead_run(world: World) -> None:
    world.start(host, grill, use=[Rooms()], documents={LARDER: Larder(flour=0)})
    world.publish(a_party(), MenuChosen(party_id="p", dish="figs"))
    world.run_for(timedelta(seconds=1))
    world.publish(PartyWithdrawn(party_id="p", reason="rain"))
    world.publish(*(MenuChosen(party_id="p", dish=f"{number} cakes") for number in range(12)))
    world.run_until_quiet()


def test_a_saga_starts_again_after_its_retention_despite_a_cached_progress(world: World) -> None:
    """Else its messages, which have the ids of before, are nothing to one worker and begin something at the other."""
    assert isinstance(world, SimulatedWorld)
    world.start(baker, use=[Rooms()])
    for _ in range(3):
        world.publish(a_party())
        world.run_for(timedelta(hours=2))
    assert len([r for r in world.cluster.log if envelope.type_of(r) == "Kneaded"]) == 3


painter = Service("host")


@painter.handler
async def write_menu(planned: PartyPlanned) -> MenuChosen:
    return MenuChosen(party_id=planned.party_id, dish="soup")


@painter.compensation(write_menu)
async def wipe(called_off: PartyCalledOff, menu: MenuChosen) -> None:
    return None


@painter.handler
async def say_no(withdrawn: PartyWithdrawn) -> PartyCalledOff:
    return PartyCalledOff(party_id=withdrawn.party_id, reason=withdrawn.reason)


def test_a_result_that_is_also_produced_externally_does_not_trigger_a_compensation(world: World) -> None:
    assert isinstance(world, SimulatedWorld)
    world.start(painter)
    world.publish(MenuChosen(party_id="p", dish="figs"))
    world.run_until_quiet()
    world.verify()
    assert not {record.topic for record in world.cluster.log} & {"host.dead"}


def test_an_undone_result_is_no_part_although_its_run_has_other_results() -> None:
    x, y = (a_message(type_) for type_ in "XY")
    role = replace(
        a_role("chain", "X Y", many=True), undo=CompensationRole(name="undo", outcomes=frozenset(), results=frozenset())
    )
    p = struct_replace(
        blank(),
        results=tuple(
            CompensableResult(handler="chain", cause="A-1", event=e, self_consumed_ids=(x.id, y.id)) for e in (x, y)
        ),
        self_consumed=(SelfConsumedEvent(event=x, n=0), SelfConsumedEvent(event=y, n=0)),
    )
    roles = HandlerRoles("s", [role], outcomes=frozenset(), emitted=frozenset("XY"))
    write_context = WriteContext(
        message=a_message(), position=None, roles=roles, self_consumed_types=(), now_ms=0, retention_s=1
    )
    once = complete_compensation(p, write_context, role, p.results[1], TransitionDetails(message=write_context.message))
    assert [own.event for own in once.snapshot.self_consumed] == [x]


class Desk:
    """Remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, what: str) -> None:
        self.asked.append(what)
        await asyncio.to_thread(int)

    async def tell(self, what: str) -> None:
        await self.ask(what)


async def test_a_failed_step_in_a_task_group_ends_the_run_with_its_own_error() -> None:
    payment, desk, runs = Service("payment"), Desk(), list[int]()

    @payment.resource
    async def a_desk() -> AsyncIterator[Desk]:
        yield desk

    @payment.handler(retry=Retry(attempts_max=5, delay_s_first=0.001))
    async def first(order: OrderPlaced, a_desk: Desk, saga: Saga) -> None:
        runs.append(1)
        async with asyncio.TaskGroup() as tasks:
            for call in (desk.ask, desk.tell)[:: 1 if len(runs) == 1 else -1]:
                tasks.create_task(saga.step(call, "tea"))
        raise OSError("once more")

    done = await trial(payment, an_order(), real=[Desk])
    (dead,) = done.progress.transitions
    assert (dead.outcome, len(runs)) == ("dead", 2)
    assert str(dead.reason).startswith("NotDeterministic: not deterministic: first recorded step 'ask' (number 1)")
