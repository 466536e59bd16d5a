"""A schedule as a regression test: a file beside the test whose run it was."""

import inspect
import re
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path

from saga.errors import SagaError
from saga.testing.simulation.schedules import Schedule

WHY_MAX = 110
"""Most characters about why it failed: one line."""
_TEST = '''"""A run of {name} that failed once, kept.

{why}
"""

from saga.testing import World, replay

from {module} import {name} as scenario


@replay(
    seed={seed},
    faults={faults},
    without={without},
)
def test_{stem}(world: World) -> None:
    scenario(world)
'''


def saved(scenario: Callable[..., object], schedule: Schedule, why: str) -> Path:
    """Write the test; its path. The same schedule gives the same file.

    Raises `SagaError` for a test in a class, or one that takes more than a world: another could not call it.
    """
    name = scenario.__qualname__
    if not name.isidentifier():
        raise SagaError(f"{name} cannot be imported by another test: write the scenario as a function of its module")
    others = [p.name for p in inspect.signature(scenario).parameters.values() if p.default is p.empty]
    if others != ["world"]:
        raise SagaError(f"{name} takes {', '.join(others)}: a test that was saved gives nothing but a world")
    planted = [str(fault) for fault in schedule.planted]
    told = repr((schedule.seed, planted, sorted(schedule.without)))
    stem = f"{name.removeprefix('test_')}_{blake2b(told.encode(), digest_size=3).hexdigest()}"
    path = Path(scenario.__code__.co_filename).parent / f"test_schedule_{stem}.py"
    text = _TEST.format(
        name=name,
        why=re.sub(r'[\\"]', "'", why.split("\n")[0])[:WHY_MAX].strip(),
        module=scenario.__module__,
        seed=schedule.seed,
        faults=_as_list(f'"{fault}"' for fault in planted),
        without=_as_list(map(str, sorted(schedule.without))),
        stem=stem,
    )
    path.write_text(text)
    return path


def _as_list(literals: Iterable[str]) -> str:
    """List in source, as the formatter leaves it."""
    lines = "".join(f"        {literal},\n" for literal in literals)
    return f"[\n{lines}    ]" if lines else "[]"
