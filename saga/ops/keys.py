"""Findings of the doctor about the folder of keys."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from saga.configuration import adapters, wiring
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.encryption.port import Keys, KeyState
from saga.encryption.text import find_key_names
from saga.errors import ConfigurationError, KeyMissing, SagaError
from saga.ops.histories import read_histories
from saga.ops.sources import ServiceStore
from saga.support.adapter_description import Finding
from saga.support.clock import Clock
from saga.support.printable import counted

SAMPLED_MAX = 200
"""Sagas of a service in which sealed values are looked for."""
SHOWN_MAX = 5
"""Secrets that cannot be read which are told one by one."""
AGAIN = "mend that, and run saga doctor again"


async def check_keys(services: Sequence[Declared], settings: Settings, clock: Clock) -> list[Finding]:
    """See whether these services can seal what they have to, and open what is sealed with any of the secrets."""
    if not settings.keys:
        return []
    about = f"keys {settings.keys}"
    try:
        wiring.keys_of(settings, clock, services)
        ring = wiring.key_ring(Path(settings.keys), clock)
        state = await asyncio.to_thread(ring.summarize)
    except ConfigurationError as why:
        return [Finding("error", about, problem, "no service starts", AGAIN) for problem in why.problems]
    found = list(_check_folder(about, state))
    for service in services:
        with suppress(SagaError, TimeoutError):  # a store that cannot be asked, or cannot list, is told by itself
            found += await _check_encrypted(about, service, settings, clock, ring)
    return found


async def _check_encrypted(
    about: str, service: Declared, settings: Settings, clock: Clock, keys: Keys
) -> Sequence[Finding]:
    """Findings about values that the service has sealed, as far as the secrets are not in this folder."""
    if adapters.store_adapter(settings.store).missing_file(settings, service.name) is not None:
        return []
    names, looked = set[str](), 0
    async with AsyncExitStack() as stack:
        opening = stack.enter_async_context(adapters.store_at(settings, service.name, clock, readonly=True))
        source = ServiceStore(service.name, await clock.within(settings.open_s, opening), clock)
        async for history in read_histories(source):
            names |= find_key_names(*(event.value for entry in history.entries for event in entry.events))
            looked += 1
            if looked == SAMPLED_MAX:
                break
    missing = [name for name in sorted(names) if await _is_missing(name, keys)]
    return list(describe_missing(about, service.name, len(missing), len(names)))


async def _is_missing(name: str, keys: Keys) -> bool:
    try:
        await keys.get_key(name)
    except KeyMissing:
        return True
    return False


def describe_missing(about: str, service: str, missing: int, sampled: int) -> Iterator[Finding]:
    """Finding if a service has sealed values with secrets that the folder never had. If it has none of those sampled,
    it is another folder."""
    if missing:
        yield Finding(
            "error" if missing == sampled else "warning",
            about,
            f"of {counted(sampled, 'secret')} with which {service} has sealed values, {missing} "
            f"{'is' if missing == 1 else 'are'} not in this folder",
            "the processes of the service use another folder of keys, or this one has lost some of it: what one side "
            "seals the other side cannot open, and its runs are parked",
            "have SAGA_KEYS name one folder in all processes, and restore what it lacks from a copy",
        )


def _check_folder(about: str, state: KeyState) -> Iterator[Finding]:
    for trouble in state.troubles[:SHOWN_MAX]:
        yield Finding(
            "error",
            about,
            trouble,
            "what was sealed with it cannot be read: runs that need it are parked",
            "restore it",
        )
    if (more := len(state.troubles) - SHOWN_MAX) > 0:
        yield Finding("error", about, f"others that cannot be read: {more}", "as of these", "restore them")
    if state.unwritable:
        yield Finding(
            "error",
            about,
            f"{state.unwritable} may not be written",
            "the first event of a new subject waits, and nobody can be forgotten",
            "let the user of the services write there",
        )
    if state.unneeded:
        yield Finding(
            "warning",
            about,
            f"nothing is wrapped any more with {', '.join(state.unneeded)}",
            "with them and a backup of the folder what was erased can be opened",
            "remove them, and their copies, once every erasure is older than the last backup that you would restore",
        )
    if not state.troubles:
        yield Finding("ok", about, f"secrets of {state.subjects} subjects can be read; {state.erased} were forgotten")
