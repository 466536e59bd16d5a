"""A failing run as a test: written beside it, it fails in the same way until the bug is mended."""

import sys
from pathlib import Path

import pytest

from saga.testing import pytest_runs
from tests.testing.plugin.conftest import Runs, note_of

pytest_plugins = ["pytester"]

RUFF = Path(sys.executable).with_name("ruff")
FAILING = """
@simulate(seeds=60, faults=BREAKING)
def test_charged_once(world: World) -> None:
    scenario(orders=3, asked_max=1)(world)
"""
MENDED = FAILING.replace("asked_max=1", "asked_max=2")


def saved_in(project: pytest.Pytester) -> list[Path]:
    return sorted(project.path.glob("test_schedule_*.py"))


def faults_of(note: str) -> list[str]:
    return [line for line in note.splitlines() if "***" in line]


def test_a_saved_run_fails_in_the_same_way_until_the_bug_is_mended(runs: Runs, project: pytest.Pytester) -> None:
    first = note_of(runs(FAILING, "--saga-save"))
    (saved,) = saved_in(project)
    assert f"saved: {saved}" in first
    again = project.runpytest_inprocess(saved)
    again.assert_outcomes(failed=1)
    assert faults_of(note_of(again)) == faults_of(first) != []
    assert "AssertionError: c-1 was asked 2 times" in note_of(again)
    runs(MENDED, str(saved)).assert_outcomes(passed=1)


def test_without_the_option_nothing_is_saved(runs: Runs, project: pytest.Pytester) -> None:
    runs(FAILING).assert_outcomes(failed=1)
    assert saved_in(project) == []


def test_the_same_run_is_saved_once(runs: Runs, project: pytest.Pytester) -> None:
    runs(FAILING, "--saga-save")
    before = {file: file.read_text() for file in saved_in(project)}
    runs(FAILING, "--saga-save", "test_it.py")
    assert {file: file.read_text() for file in saved_in(project)} == before


@pytest.mark.slow
def test_a_saved_run_is_as_the_formatter_and_the_linter_want_it(runs: Runs, project: pytest.Pytester) -> None:
    runs(
        FAILING
        + """
@crash_everywhere(pairs=True)
def test_needs_two(world: World) -> None:
    scenario(orders=1, asked_max=2, customer="c-0")(world)

def test_needs_none(world: World) -> None:
    raise AssertionError("it is 'wrong' or \\"wrong\\", " * 20)
""",
        "--saga-save",
    )
    assert len(saved_in(project)) == 3
    for command in (["format", "--check"], ["check", "--select=E,F,I,D100"]):
        done = project.run(RUFF, *command, "--line-length=120", *saved_in(project))
        assert done.ret == 0, done.stdout.str()


@pytest.mark.parametrize("decorator", ["", "@simulate(seeds=2, faults=BREAKING)", "@replay(seed=1)"])
def test_a_test_may_save_its_schedule_itself(runs: Runs, project: pytest.Pytester, decorator: str) -> None:
    result = runs(f"""
seen = []

{decorator}
def test_it(world: World) -> None:
    scenario(orders=1, asked_max=99)(world)
    seen.append(world.save_schedule())

def test_what_it_saved() -> None:
    assert seen
    assert all("A run of test_it that failed once" in path.read_text() for path in seen)
""")
    result.assert_outcomes(passed=2)
    saved = saved_in(project)
    assert saved
    project.runpytest_inprocess(*saved).assert_outcomes(passed=len(saved))


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        (
            """
class TestTill:
    @simulate(seeds=1)
    def test_it(self, world: World) -> None:
        raise AssertionError("bug")
""",
            "TestTill.test_it cannot be imported",
        ),
        (
            """
@simulate(seeds=1)
def test_it(world: World, tmp_path) -> None:
    raise AssertionError("bug")
""",
            "test_it takes world, tmp_path: a test that was saved gives nothing but a world",
        ),
    ],
    ids=["in a class", "takes more"],
)
def test_an_error_on_saving_does_not_hide_the_failure(
    runs: Runs, project: pytest.Pytester, tests: str, why: str
) -> None:
    result = runs(tests, "--saga-save")
    result.assert_outcomes(failed=1)
    assert "AssertionError: bug" in note_of(result)
    assert f"not saved: {why}" in note_of(result)
    assert saved_in(project) == []


def test_a_folder_that_cannot_be_written_does_not_hide_the_failure(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(why: OSError) -> None:
        raise why

    monkeypatch.setattr(pytest_runs, "save_schedule", lambda *_: refuse(PermissionError("read-only")))
    result = runs("@simulate(seeds=1)\ndef test_it(world: World) -> None: raise AssertionError('bug')", "--saga-save")
    result.assert_outcomes(failed=1)
    assert "AssertionError: bug" in note_of(result)
    assert "not saved: read-only" in note_of(result)


def test_a_run_is_saved_beside_its_test_though_a_decorator_of_another_file_wraps_it(
    runs: Runs, project: pytest.Pytester
) -> None:
    project.mkpydir("elsewhere").joinpath("wrapping.py").write_text("""
from functools import wraps

def wrapping(test):
    @wraps(test)
    def wrapped(world):
        test(world)
    return wrapped
""")
    runs(
        """
from elsewhere.wrapping import wrapping

@wrapping
@simulate(seeds=1)
def test_it(world: World) -> None: raise AssertionError("bug")
""",
        "--saga-save",
    )
    assert len(saved_in(project)) == 1
