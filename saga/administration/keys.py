"""Findings of the doctor about the folder of keys."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from saga import wiring
from saga.adapter_description import Finding
from saga.clock import Clock
from saga.config import Settings
from saga.declarations.values import Declared
from saga.errors import ConfigurationError
from saga.sealing.port import KeyState

SHOWN_MAX = 5
"""Secrets that cannot be read which are told one by one."""
AGAIN = "mend that, and run saga doctor again"


async def findings_of(services: Sequence[Declared], settings: Settings, clock: Clock) -> list[Finding]:
    """See whether these services can seal what they have to, and open what is sealed with any of the secrets."""
    if not settings.keys:
        return []
    about = f"keys {settings.keys}"
    try:
        wiring.keys_of(settings, clock, services)
        state = await asyncio.to_thread(wiring.key_ring(Path(settings.keys), clock).state)
    except ConfigurationError as why:
        return [Finding("error", about, problem, "no service starts", AGAIN) for problem in why.problems]
    return list(_of_folder(about, state))


def _of_folder(about: str, state: KeyState) -> Iterator[Finding]:
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
