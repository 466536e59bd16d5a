"""Each rule about schemas that are not deployed yet is there for a loss: take it away, and the exploration finds it."""

import pytest

from saga.engine.execution import runs
from saga.errors import UnknownSchema
from tests.exploration.without_a_rule import Take, check_loss


def an_unknown_schema_is_bad_input(patch: pytest.MonkeyPatch) -> None:
    others = {kind: name for kind, name in runs._AWAITED.items() if kind is not UnknownSchema}
    patch.setattr(runs, "_AWAITED", others)


RULES: dict[Take, str] = {an_unknown_schema_is_bad_input: "schema: begun by who knows it, gone on with by who does not"}


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_there_is_a_loss(take_away: Take) -> None:
    check_loss(take_away, RULES[take_away])
