"""Bugs planted in the limits of resources, one each: attempts that are burnt, calls without a limit, places that
are lost."""

import pytest

from saga.engine.execution.handler_runner import HandlerRunner
from saga.engine.execution.saga_context import SagaContext
from saga.engine.limits import Limiter
from saga.policies import breaker
from tests.mutants.runtime_mutants import rewrite_source


def a_breaker_burns_attempts(patch: pytest.MonkeyPatch) -> None:
    """What it refuses counts as if the call had failed."""
    rewrite_source(patch, HandlerRunner, "make_failure", "postponed_s=context.postponed_s", "postponed_s=None")


def an_open_breaker_lets_all_through(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(breaker, "left_s", lambda circuit, now_s: 0.0)


def a_refused_call_keeps_its_turn(patch: pytest.MonkeyPatch) -> None:
    """It was let in, and is refused as the breaker has opened meanwhile."""
    rewrite_source(patch, Limiter, "enter", "self._frees(None)", "pass")


def a_fallback_runs_beside_a_call_that_may_have_happened(patch: pytest.MonkeyPatch) -> None:
    """Its breaker is open when it is asked for again, and the handler takes that for an answer."""
    rewrite_source(patch, SagaContext, "call_when_admitted", "if begun is None:", "if True:")
