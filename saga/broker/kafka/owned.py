"""A partition in the hands of a member: how far it is read and committed."""

import asyncio
from dataclasses import dataclass


@dataclass(slots=True)
class Owned:
    """A partition that is ours in this assignment; the next assignment makes another one."""

    next: int
    """The offset after the last record that was handed out."""
    committed: int
    over: asyncio.Future[None]
    """Done when the assignment is over."""
