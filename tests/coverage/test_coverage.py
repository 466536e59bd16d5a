"""Coverage: measuring misses no process and no plugin, lines that did not run are reported, and floors only rise."""

from pathlib import Path

from tests.coverage import floors
from tests.coverage.pure import PURE, ROOT, measured, missing


def test_uncovered_lines_and_branches_are_reported_for_each_file_of_the_folder() -> None:
    whole: dict[str, object] = {"missing_lines": [], "missing_branches": []}
    report: dict[str, object] = {
        "saga/progress/a.py": whole,
        "saga/progress/b.py": {"missing_lines": [7], "missing_branches": []},
        "saga/progress/c.py": {"missing_lines": [], "missing_branches": [[3, 5]]},
        "saga/progressive/d.py": {"missing_lines": [1], "missing_branches": []},
    }
    assert missing(report, "saga/progress") == {"saga/progress/b.py": ([7], []), "saga/progress/c.py": ([], [[3, 5]])}


def test_the_plugin_and_other_processes_are_measured(tmp_path: Path) -> None:
    test = tmp_path / "test_one.py"
    test.write_text(
        "import subprocess, sys\n"
        "def test_one(tmp_path):\n"
        "    code = 'import os, saga.support.addresses; os._exit(0)'\n"
        "    subprocess.run([sys.executable, '-c', code], check=True, cwd=tmp_path)\n"
    )
    files = ("saga/testing/plugin.py", "saga/support/addresses.py")
    report = measured(tmp_path, files, "-c", "/dev/null", "--rootdir", str(tmp_path), str(test))
    for file in files:
        of_file = report[file]
        assert isinstance(of_file, dict)
        definitions = {n for n, line in enumerate((ROOT / file).read_text().splitlines(), 1) if line.startswith("def ")}
        assert definitions
        assert definitions <= set(of_file["executed_lines"])


def a_report(**ran: tuple[int, int, int, int]) -> dict[str, object]:
    names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
    return {
        "files": {
            f"saga/{name.replace('__', '/')}.py": {"summary": dict(zip(names, numbers, strict=True))}
            for name, numbers in ran.items()
        }
    }


def test_a_folder_is_as_covered_as_all_its_files_together_and_never_rounded_up() -> None:
    report = a_report(store__a=(10, 10, 0, 0), store__b__c=(5, 10, 4, 10), progress__d=(99_999, 100_000, 1, 1))
    assert floors.by_folder(report) == {"saga/progress": 99.9, "saga/store": 63.3}


def test_coverage_below_the_floor_and_new_or_missing_folders_are_reported() -> None:
    problems = floors.below(
        {"saga/a": 90.0, "saga/b": 80.0, "saga/c": 10.0}, {"saga/a": 89.9, "saga/b": 80.0, "saga/d": 1}
    )
    assert problems == [
        "saga/a: 89.9 %, and the floor is 90.0 %",
        "saga/c: 0.0 %, and the floor is 10.0 %",
        "saga/d: has no floor in floors.toml",
    ]


def test_a_floor_is_raised_to_what_was_reached_and_never_lowered() -> None:
    text = '# why\n[floors]\n"saga/a" = 90.0\n"saga/b" = 80\n'
    raised = floors.raised(text, {"saga/a": 95.5, "saga/b": 20.0})
    assert raised == '# why\n[floors]\n"saga/a" = 95.5\n"saga/b" = 80.0\n'


def test_each_folder_has_a_floor_and_what_is_pure_the_highest() -> None:
    folders = {floors.folder_of(path.relative_to(ROOT).as_posix()) for path in (ROOT / "saga").rglob("*.py")}
    assert set(floors.read()) == folders
    assert [floors.read()[folder] for folder in PURE] == [100, 100]
