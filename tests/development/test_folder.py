"""Which services a folder has, what of it has changed, and whom a change concerns."""

import os
from pathlib import Path

import pytest

from saga.development import processes
from saga.development.processes import affected_modules, changed_files, services_in, snapshot_files
from saga.errors import ConfigurationError

SERVICE = 'from saga import Service\n\nit: Service[None] = Service("it")\n'


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_services_are_found_without_an_import(tmp_path: Path) -> None:
    services = tmp_path / "services"
    put(
        services / "payment/__init__.py",
        'import saga\nraise SystemExit("imported")\npayment = saga.Service("payment")\n',
    )
    put(services / "stock.py", SERVICE)
    put(services / "typed.py", 'typed = Service[TypedState]("typed", state=TypedState)\n')
    put(services / "ledger.py", "class Ledger: ...\n")
    put(services / "deep/inside/__init__.py", SERVICE)
    put(services / "not-a-name.py", SERVICE)
    put(services / "notes.txt", SERVICE)
    put(services / "__init__.py", SERVICE)
    put(services / "broken.py", "def (:\n")
    put(services / "binary.py", "x = 1\0")
    found = services_in(services, tmp_path)
    assert found.modules == ("services.payment", "services.stock", "services.typed")
    assert set(found.broken) == {"services.broken", "services.binary"}
    assert found.broken["services.broken"].startswith(f"{services / 'broken.py'}:1: ")


@pytest.mark.parametrize("name", ["missing", "..", "not-a-package", "file.py"])
def test_a_name_that_is_no_package_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path / "root/not-a-package/x.py")
    put(tmp_path / "root/file.py")
    with pytest.raises(ConfigurationError, match="is no package of the folder"):
        services_in(tmp_path / "root" / name, tmp_path / "root")


def test_files_that_were_written_made_or_removed_are_found_and_no_others(tmp_path: Path) -> None:
    code, gone = put(tmp_path / "services/a.py", "1"), put(tmp_path / "services/b.py", "1")
    outside = put(tmp_path / "elsewhere/contracts/orders/Placed.v1.avsc", "{}")
    for unseen in (".git/x.py", "tests/test_a.py", "services/__pycache__/a.py", "venv/pyvenv.cfg", "venv/lib/x.py"):
        put(tmp_path / "root" / unseen)
    put(tmp_path / "services/notes.md")
    root, contracts = tmp_path / "services", tmp_path / "elsewhere/contracts"
    before = snapshot_files(root, contracts)
    assert set(before) == {code, gone, outside}
    assert set(snapshot_files(tmp_path / "root")) == set()
    assert changed_files(before, snapshot_files(root, contracts)) == frozenset()
    code.write_text("22")
    gone.unlink()
    new = put(root / "c/__init__.py")
    os.utime(outside, ns=(0, 0))
    put(root / "tests/test_a.py")
    assert changed_files(before, snapshot_files(root, contracts)) == {code, gone, new, outside}


def test_json_that_a_service_writes_itself_is_not_watched_but_that_of_contracts_manifests_and_packages(
    tmp_path: Path,
) -> None:
    watched = {
        put(tmp_path / name, "{}")
        for name in (
            "contracts/orders/topic.json",
            "contracts/released.json",
            "manifests/order.json",
            "services/p.json",
        )
    }
    watched.add(put(tmp_path / "services/__init__.py"))
    for unseen in ("report.json", "data/stock.json"):
        put(tmp_path / unseen, "{}")
    assert set(snapshot_files(tmp_path)) == watched


def test_only_a_limited_number_of_files_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "FILES_MAX", 3)
    for n in range(9):
        put(tmp_path / f"f{n}.py")
    assert len(snapshot_files(tmp_path)) == 3


def test_a_change_concerns_its_service_and_one_of_what_is_shared_all() -> None:
    root, modules = Path("/root"), ["services.payment", "services.stock"]
    services = root / "services"
    assert affected_modules([services / "payment/bank.py"], modules, root) == ("services.payment",)
    assert affected_modules([services / "stock.py"], modules, root) == ("services.stock",)
    assert affected_modules([services / "stock.py", services / "payment/events.py"], modules, root) == tuple(modules)
    assert affected_modules([services / "money.py"], modules, root) == tuple(modules)
    assert affected_modules([services / "stock.py", root / "contracts/orders/Placed.v1.avsc"], modules, root) == tuple(
        modules
    )
    assert affected_modules([services / "stock/x.py", services / "payments.py"], modules, root) == tuple(modules)
