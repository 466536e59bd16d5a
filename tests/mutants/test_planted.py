"""A planted function that is never called is found."""

from types import SimpleNamespace

from tests.mutants.planted import planted


class Place:
    """Something with a method and a property."""

    def method(self) -> int:
        return 1

    @property
    def value(self) -> int:
        return 1


def test_calls_of_planted_functions_and_properties_are_counted() -> None:
    with planted() as (patch, calls):
        patch.setattr(Place, "method", lambda self: 2)
        patch.setattr(Place, "value", property(lambda self: 2))
        assert calls.never_called() == ["Place.method", "Place.value"]
        assert (Place().method(), Place().value) == (2, 2)
        assert calls.never_called() == []
    assert (Place().method(), Place().value) == (1, 1)


def test_a_constant_is_not_counted_and_a_name_may_be_dotted() -> None:
    with planted() as (patch, calls):
        patch.setattr(place := SimpleNamespace(limit=1), "limit", 2)
        patch.setattr("tests.mutants.test_planted.Place.method", lambda self: 3)
        assert place.limit == 2
        assert calls.never_called() == ["tests.mutants.test_planted.Place.method"]
        assert Place().method() == 3
        assert calls.never_called() == []
