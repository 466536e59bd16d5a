"""Workers of a simulated world: each is a process that serves, dies, freezes, is restarted; only the world watches over
them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from saga.declarations.values import Declared
from saga.observe.moments import Assigned, Handled, Moment, Revoked, Started, StepDone, Stopped
from saga.runtime.lifecycle import Options, serve
from saga.runtime.ports import Step
from saga.runtime.prepared import Prepared, prepare
from saga.runtime.room import Limits
from saga.testing.simulation.broker import SimulatedBroker
from saga.testing.simulation.chance import Chance
from saga.testing.simulation.clock import SimulatedClock
from saga.testing.simulation.cluster import Cluster
from saga.testing.simulation.loop import SimulatedLoop
from saga.testing.simulation.network import RESTART_S, Backend, Disruptions, Network
from saga.testing.simulation.processes import CURRENT, Process
from saga.testing.simulation.store import Disk, SimulatedStore
from saga.testing.simulation.trace import Noted

NOTICED_S = 10.0
"""Longest time until a group notices that a member has died."""
EVERYDAY = (Handled, StepDone, Assigned, Revoked, Started, Stopped)
"""Moments that a timeline leaves out."""
OUTSIDE = Backend("outside", ConnectionError, ConnectionError)

Accident: TypeAlias = Literal["crash", "freeze", "rebalance"]
"""Accidents that can happen to a worker at any moment, whatever it does."""


@dataclass(eq=False, slots=True)
class WorkerLife:
    """One life of a worker, from its start to its end or death."""

    process: Process
    broker: SimulatedBroker
    stop: asyncio.Event
    task: "asyncio.Task[None] | None" = None


class Workers(Disruptions):
    """All workers of one world."""

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        cluster: Cluster,
        chance: Chance,
        failed: Callable[[BaseException], None],
    ) -> None:
        """`failed`: called when a worker ends by itself, which none does."""
        self.disks: dict[str, Disk] = {}
        self._loop, self._network, self._cluster, self._chance = loop, network, cluster, chance
        self._failed = failed
        self.prepared: dict[str, Prepared] = {}
        """Services as prepared, each once for all its lives."""
        self.fakes: dict[str, Sequence[object]] = {}
        self._lives: dict[str, WorkerLife] = {}
        """Present life of each worker, by the process's name."""

    def add(self, declared: Declared, use: Sequence[object], count: int) -> None:
        """Begin so many workers of a service."""
        self.prepared[declared.name], self.fakes[declared.name] = prepare(declared), use
        self.disks[declared.name] = Disk()
        self._cluster.group(declared.name).rotation = int(4 * self._chance.draw(f"{declared.name} begins"))
        for number in range(1, count + 1):
            self._begin(f"{declared.name}-{number}", declared.name, 1)

    # ---------------------------------------------------------------- lives

    def _begin(self, name: str, service: str, life: int) -> None:
        process = Process(name, service, life)
        broker = SimulatedBroker(self._cluster, process, self._network, self.prepared[service].memory_s)
        context = copy_context()
        context.run(CURRENT.set, process)
        lived = self._lives[name] = WorkerLife(process, broker, context.run(asyncio.Event))
        lived.task = self._loop.create_task(self._serve(lived), name=name, context=context)
        lived.task.add_done_callback(lambda task: self._ended(lived, task), context=self._network.context)

    async def _serve(self, life: WorkerLife) -> None:
        process, prepared = life.process, self.prepared[life.process.service]
        async with SimulatedStore(self.disks[process.service], process, self._network) as store, life.broker as broker:
            await serve(
                prepared,
                store=store,
                broker=broker,
                use=self.fakes[process.service],
                options=Options(
                    clock=SimulatedClock(process, self._chance),
                    report=lambda moment: self._reported(process, moment),
                    limits=Limits(),
                    stop=life.stop,
                    worker=process.name,
                    through=lambda step: self._outside(process, step),
                ),
            )

    def _ended(self, life: WorkerLife, task: "asyncio.Task[None]") -> None:
        why = asyncio.CancelledError() if task.cancelled() else task.exception()
        if why is not None:
            self._failed(why)
        else:
            self._again(life, 0.5)

    def _again(self, life: WorkerLife, after_s: float) -> None:
        """Begin another life after a while."""
        process = life.process

        def begin() -> None:
            self._network.note(process.name, "begins again")
            self._begin(process.name, process.service, process.life + 1)

        self._network.later(after_s, begin)

    def _reported(self, process: Process, moment: Moment) -> None:
        if not isinstance(moment, EVERYDAY) and not self._loop.is_closed():
            self._network.trace.lines.append(Noted(self._loop.time(), process.name, "", moment))

    def _outside(self, process: Process, step: Step) -> Awaitable[Any]:
        """Make the call of a step: it goes on when its caller dies."""

        async def made() -> Any:
            return await step.make()

        name = f"{process.service}.{step.handler}"
        return self._network.ask(
            process,
            OUTSIDE,
            "step",
            f"{step.asked.name} by {name} of {step.saga}",
            (name,),
            lambda *_: self._loop.create_task(made(), name=step.asked.name),
        )

    # ---------------------------------------------------------------- disruptions

    def names(self) -> list[str]:
        """Names of all workers, service by service: `payment-1`."""
        return list(self._lives)

    def meets(self, name: str, accident: Accident) -> None:
        """Have it happen to a worker now. To one that is dead nothing happens, and to one that is frozen only a
        crash."""
        life = self._lives[name]
        process = life.process
        ended = life.task is None or life.task.done()  # in good order, and not begun again
        if ended or not process.alive or (process.frozen and accident != "crash"):
            return
        draws = self._chance.draws(f"{name} {accident} at {self._loop.time()}")
        match accident:
            case "crash":
                told = f"{name} dies"
                self.crash(process, 0.05 + RESTART_S * draws[3])
            case "freeze":
                time_s = 0.05 + 30 * draws[2] ** 2
                told = f"{name} stands still for {time_s:.1f} s"
                self.freeze(process, time_s)
            case "rebalance":
                told = self.rebalance(process, draws)
        self._network.note(name, f"*** {told} ***")

    def crash(self, process: Process, after_s: float) -> None:
        life = self._lives[process.name]
        if life.process is not process or not process.alive:
            return
        self._loop.kill(process)
        noticed_s = NOTICED_S * self._chance.draw(f"{process.name} {process.life} dies") ** 2
        for member in life.broker.members:
            self._network.later(noticed_s, member.gone)
        self._again(life, after_s)

    def freeze(self, process: Process, time_s: float) -> None:
        if process.frozen or not process.alive:
            return
        self._loop.freeze(process)
        for member in self._lives[process.name].broker.members:
            member.silent_for(time_s)

        def thaw() -> None:
            if process.alive:
                self._network.note(process.name, "goes on")
                self._loop.thaw(process)

        self._network.later(time_s, thaw)

    def anew(self) -> None:
        for life in self._lives.values():
            if life.process.alive:
                life.stop.set()

    def silent(self, who: str, time_s: float) -> None:
        for life in self._lives.values():
            if who in (life.process.name, life.process.service) and life.process.alive:
                for member in life.broker.members:
                    member.silent_for(time_s)

    def rebalance(self, process: Process, draws: tuple[float, float, float, float]) -> str:
        if draws[2] < 0.25:
            life = self._lives[process.name]
            self._network.later(0.0, life.stop.set)
            return f"{process.name} is restarted in good order"
        group, times = self._cluster.group(process.service), 1 + int(draws[3] * 4)

        def move() -> None:
            group.rotation += 1
            group.balance()

        for number in range(times):
            self._network.later(number * 2 * draws[2], move)
        return f"partitions of {process.service} move {times} times"
