"""Data folders of several nodes on this machine: none has the id of another, whatever the first one's is."""

from pathlib import Path
from string import ascii_letters, digits

import pytest

from saga.testing.servers.kafka import assign_node


@pytest.mark.parametrize("first", f"{ascii_letters}{digits}-_")
def test_no_two_nodes_have_one_directory_id(tmp_path: Path, first: str) -> None:
    made, ids = f"node.id=1\ndirectory.id={first}sFaGfZ8QK2dBGq2Gm6n7A\n", set()
    for node in range(1, 6):
        (tmp_path / "meta.properties").write_text(made)
        assign_node(tmp_path, node)
        properties = dict(line.split("=", 1) for line in (tmp_path / "meta.properties").read_text().split())
        assert properties["node.id"] == str(node)
        ids.add(properties["directory.id"])
    assert len(ids) == 5
