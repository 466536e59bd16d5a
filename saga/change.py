"""Changes of documents: the value that a handler is given when a document was written, removed, or expired."""

from typing import TYPE_CHECKING, Generic

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D_co = TypeVar("D_co", bound="DataclassInstance", covariant=True)


class Change(Generic[D_co]):
    """One change of a document, from a change stream: a handler's `change: Change[OrderDocument]`, in place of events.

    What happened is told by its class: `Insert`, `Update`, `Delete` or `Expiry`; a plain `Change` says no more than
    what is there now. `match` and `isinstance` tell them apart.

    Promises: in order per document, each once, from a stored position. A burst of changes may come as its last, so an
    `Update` may be the first that is seen of a document. A body that is not a `D` is a dead letter.
    """

    __slots__ = ("_before", "_document", "_key")

    def __init__(self, *, key: str, document: D_co | None, before: D_co | None = None) -> None:
        """`key`: the document's. `document`: as it is after the change. `before`: as it was, if the source tells."""
        self._key, self._document, self._before = key, document, before

    @property
    def key(self) -> str:
        """Key of the document; the saga id, unless `document(..., saga=...)` names a field."""
        return self._key

    @property
    def document(self) -> D_co | None:
        """Document after the change; `None`: it was removed, or has expired."""
        return self._document

    @property
    def before(self) -> D_co | None:
        """Document before the change; `None`: there was none, or the source does not tell. SQLite does, Couchbase
        does not."""
        return self._before

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or not isinstance(other, Change):
            return NotImplemented
        return (self._key, self._document, self._before) == (other._key, other._document, other._before)

    def __hash__(self) -> int:
        return hash((type(self), self._key))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(key={self._key!r}, document={self._document!r}, before={self._before!r})"


class Insert(Change[D_co]):
    """A document that was not there before."""

    __slots__ = ()

    def __init__(self, *, key: str, document: D_co) -> None:
        super().__init__(key=key, document=document)


class Update(Change[D_co]):
    """A document that was written again; `before` is there if the source tells it."""

    __slots__ = ()

    def __init__(self, *, key: str, document: D_co, before: D_co | None = None) -> None:
        super().__init__(key=key, document=document, before=before)


class Delete(Change[D_co]):
    """A document that somebody removed; `before` is there if the source tells it."""

    __slots__ = ()

    def __init__(self, *, key: str, before: D_co | None = None) -> None:
        super().__init__(key=key, document=None, before=before)


class Expiry(Delete[D_co]):
    """A document that was removed because its time was over."""

    __slots__ = ()
