"""Setup of a worker process: the service that it runs, its files or servers, and the fakes for its resources."""

import importlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from saga.declarations.limits import Limits, limits_of
from saga.declarations.values import Declared
from saga.errors import SagaError
from saga.policies.last_good import LastGood
from saga.service import Service
from saga.testing.processes.servers import Place

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class CallLimits(Struct, frozen=True, kw_only=True):
    """Limits of one call of a fake, as JSON has them."""

    call: str
    timeout_s: float | None = None
    at_once_max: int | None = None
    rate_per_s: float | None = None
    remembered: LastGood | None = None
    instead: str | None = None
    """Name of the method that is called in its place while it is refused."""


class RemoteFake(Struct, frozen=True, kw_only=True):
    """A fake of the test, as a worker sees it: calls that go to the test's process."""

    resource: str
    """Name of the resource in whose place it is."""
    number: int
    """Number of the fake in the test."""
    calls: dict[str, CallLimits | None]
    """Names of its public async methods, each with the limits of its own."""


class WorkerSetup(Struct, frozen=True, kw_only=True):
    """Setup of one worker process, in a JSON file."""

    modules: tuple[str, ...]
    """Modules to be imported for the service to be whole, the one that holds it first."""
    attribute: str
    declarations: tuple[str, ...]
    """Declarations of the service in the test's process, to be compared."""
    broker: str = ""
    store: str = ""
    """Files of broker and store; empty where there are servers."""
    place: Place | None = None
    """Addresses of servers, if there are any."""
    outside: str
    """Socket on which the test's process answers for its fakes."""
    fakes: tuple[RemoteFake, ...]

    def write(self, file: Path) -> None:
        """Write it for a process that is about to start."""
        file.write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, file: Path) -> "WorkerSetup":
        """Read a file that `write` wrote."""
        return msgspec.json.decode(file.read_bytes(), type=cls)

    def service(self) -> Declared:
        """Import it. Raises `SagaError` for one that is another one here than in the test's process."""
        module, *_ = [importlib.import_module(name) for name in self.modules]
        service = getattr(module, self.attribute, None)
        if not isinstance(service, Service):
            raise SagaError(
                f"{self.modules[0]}.{self.attribute} is no service when the module is imported afresh: declare it at "
                "the module's top level"
            )
        if declarations_of(service.declared) != self.declarations:
            raise SagaError(
                f"service {service.declared.name!r} declares {_listed(declarations_of(service.declared))} when "
                f"{', '.join(self.modules)} are imported afresh, and {_listed(self.declarations)} in the test: "
                "let its declarations depend on nothing but these modules"
            )
        return service.declared


def module_and_name(service: "Service[DataclassInstance | None]") -> tuple[tuple[str, ...], str]:
    """The modules that declare a service, the one that holds it first, and its name there.

    Raises `SagaError` for a service that another process could not import.
    """
    declared = service.declared
    functions = [
        *(handler.function for handler in declared.reactions),
        *(resource.opener for resource in declared.resources),
    ]
    modules = dict.fromkeys(function.__module__ for function in functions)
    for name in modules:
        for attribute, value in vars(sys.modules[name]).items() if name in sys.modules else ():
            if value is service and name != "__main__":
                return (name, *(other for other in modules if other not in (name, "__main__"))), attribute
    where = f" (looked for in {', '.join(modules)})" if modules else ""
    raise SagaError(
        f"service {declared.name!r} cannot be run by another process, for no module of its handlers holds it{where}: "
        "move it to the top level of a module that can be imported, with its handlers"
    )


def declarations_of(declared: Declared) -> tuple[str, ...]:
    """Names of all that a service declares, sorted: modules may be imported in another order elsewhere."""
    return tuple(
        sorted(
            [
                *(handler.name for handler in declared.reactions),
                *(resource.name for resource in declared.resources),
                *(document.collection for document in declared.documents),
            ]
        )
    )


def remote_fakes_of(declared: Declared, use: Sequence[object]) -> tuple[RemoteFake, ...]:
    """Fakes of `use` for the resources of a service: for each resource the first that is an instance."""
    found = []
    for resource in declared.resources:
        number = next((n for n, fake in enumerate(use) if isinstance(fake, resource.gives)), None)
        if number is not None:
            found.append(RemoteFake(resource=resource.name, number=number, calls=_calls_of(use[number])))
    return tuple(found)


def _calls_of(fake: object) -> dict[str, CallLimits | None]:
    public = {name: inspect.getattr_static(fake, name, None) for name in dir(fake) if not name.startswith("_")}
    return {name: _as_json(limits_of(method)) for name, method in public.items() if _is_async(method)}


def _as_json(limits: Limits | None) -> CallLimits | None:
    if limits is None:
        return None
    other = limits.fallback
    return CallLimits(
        call=limits.call,
        timeout_s=limits.timeout_s,
        at_once_max=limits.at_once_max,
        rate_per_s=limits.rate_per_s,
        remembered=other if isinstance(other, LastGood) else None,
        instead=None if other is None or isinstance(other, LastGood) else other.__name__,
    )


def _is_async(method: object) -> bool:
    """True for an async function, also behind decorators that tell what they wrap."""
    return callable(method) and inspect.iscoroutinefunction(inspect.unwrap(method))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
