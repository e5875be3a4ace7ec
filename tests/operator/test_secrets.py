"""Secrets: what the operator makes is what the service reads."""

from __future__ import annotations

import hashlib

from memplane.api.auth.key_file import parse_key_file
from memplane_operator.secrets import new_api_key


def test_the_service_reads_the_key_that_the_operator_made() -> None:
    made = new_api_key()
    entry = parse_key_file(made["keys.yaml"]).keys[0]
    assert entry.sha256 == hashlib.sha256(made["key"].encode()).hexdigest()
    assert (entry.tenant, entry.users, entry.roles) == ("default", "*", ["reader", "writer"])
    assert made["key"] not in made["keys.yaml"]


def test_two_keys_differ() -> None:
    assert new_api_key()["key"] != new_api_key()["key"]
