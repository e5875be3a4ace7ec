"""Addresses with and without credentials in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from memplane.errors import SettingsError
from memplane.projections.address import Address, read_address, split_credentials


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://milvus:19530", Address("http://milvus:19530")),
        ("http://root:Mil%40vus@milvus:19530", Address("http://milvus:19530", "root", "Mil@vus")),
        ("bolt://neo4j:p%3Aw@graph:7687/x", Address("bolt://graph:7687/x", "neo4j", "p:w")),
        ("neo4j+s://user@graph", Address("neo4j+s://graph", "user", "")),
        ("bolt://u:a@b@[::1]:7687", Address("bolt://[::1]:7687", "u", "a@b")),
    ],
)
def test_credentials_are_taken_out_of_the_url(url: str, expected: Address) -> None:
    assert split_credentials(url) == expected


def test_the_file_is_read_again_on_every_call(tmp_path: Path) -> None:
    file = tmp_path / "uri"
    file.write_text("http://a:1@host:19530\n")
    assert read_address("milvus", None, file) == Address("http://host:19530", "a", "1")
    file.write_text("http://a:2@host:19530")
    assert read_address("milvus", "http://other", file).password == "2"


def test_a_missing_address_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"neo4j\.uri or neo4j\.uri_file is required"):
        read_address("neo4j", None, None)
    with pytest.raises(SettingsError, match=r"neo4j\.uri_file cannot be read"):
        read_address("neo4j", None, tmp_path / "absent")


def test_a_milvus_lite_file_is_taken_as_it_is() -> None:
    assert read_address("milvus", "a@b/lite.db", None) == Address("a@b/lite.db")
