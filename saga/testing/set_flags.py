"""Flags that are on from the beginning of a trial, in the book in which people's switches stand."""

from collections.abc import Collection

from saga.messaging import controls
from saga.messaging.controls import OPERATOR, TYPE, Book, Control, Switch


def book_with(service: str, flags: Collection[str], time: str) -> bytes:
    """Make the content of a service's book in which these flags are on for all sagas."""
    book = Book(service=service)
    for flag in flags:
        control = Control(
            id=f"control-{flag}",
            type=TYPE,
            schema="",
            saga=service,
            source=OPERATOR,
            time=time,
            value=b"",
            switch=Switch(flag=flag, percent=100),
            who="a trial",
            why="a trial",
        )
        book = controls.noted(book, control) or book
    return controls.encode(book)
