"""Who may call, and as whom: tables over credentials, headers and hosts."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from memplane.api.auth.api_keys import ApiKeys
from memplane.api.auth.identity import MAX_NAME_BYTES, Identity, Role, bearer_token, valid_name
from memplane.api.auth.key_file import KeyFile, new_key, parse_key_file, render_key_file
from memplane.api.auth.loopback import Loopback, is_loopback
from memplane.api.auth.scope import check_role, scope_of
from memplane.api.auth.status_key import StatusKey, parse_status_key
from memplane.api.auth.watched_file import WatchedFile
from memplane.api.errors import Forbidden, HttpError, Unauthenticated
from memplane.contracts import NODES, Scope
from memplane.errors import SettingsError
from memplane.plugins.postgres.documents import MAX_SCOPE_BYTES

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def key_file(tmp_path: Path, **changes: object) -> tuple[str, Path]:
    key, entry = new_key(tenant="acme", users=["ann"], roles=[Role.READER])
    path = tmp_path / "keys.yaml"
    path.write_text(render_key_file(KeyFile(keys=[entry.model_copy(update=changes)])))
    return key, path


def bearer(token: str) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + token.encode()}


async def test_a_key_of_the_file_is_its_identity(tmp_path: Path) -> None:
    key, path = key_file(tmp_path)
    keys = ApiKeys(path)
    await keys.start()
    identity = await keys.authenticate(bearer(key))
    assert identity.tenant == "acme"
    assert identity.users == frozenset({"ann"})
    assert identity.roles == frozenset({Role.READER})
    assert key not in path.read_text()
    assert key.split("_")[2] not in identity.name


async def test_refused_keys(tmp_path: Path) -> None:
    key, path = key_file(tmp_path)
    keys = ApiKeys(path)
    for headers in [
        {},
        {b"authorization": b""},
        {b"authorization": b"Bearer"},
        {b"authorization": b"Bearer "},
        {b"authorization": b"Basic " + key.encode()},
        {b"authorization": key.encode()},
        bearer(key[:-1]),
        bearer(key + "x"),
        bearer(key.upper()),
        {b"authorization": b"Bearer \xff\xfe"},
    ]:
        with pytest.raises(Unauthenticated) as caught:
            await keys.authenticate(headers)
        assert caught.value.status == 401
        assert key[:20] not in caught.value.message


async def test_an_expired_key_is_refused(tmp_path: Path) -> None:
    key, path = key_file(tmp_path, expires_at=NOW)
    assert await ApiKeys(path, now=lambda: NOW - timedelta(seconds=1)).authenticate(bearer(key))
    with pytest.raises(Unauthenticated):
        await ApiKeys(path, now=lambda: NOW).authenticate(bearer(key))


async def test_no_file_refuses_to_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"keys\.yaml cannot be read"):
        await ApiKeys(tmp_path / "keys.yaml").start()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys: 5", "keys"),
        ("[", "not valid YAML"),
        ("other: []", "other: Extra inputs are not permitted"),
        ("keys: [{id: a}]", "keys.0.sha256: Field required"),
        ("keys: [{id: a, sha256: nothex, tenant: t, users: '*', roles: [reader]}]", "keys.0.sha256"),
        (f"keys: [{{id: a, sha256: {'0' * 64}, tenant: t, users: [], roles: [reader]}}]", "keys.0.users"),
        (f"keys: [{{id: a, sha256: {'0' * 64}, tenant: t, users: '**', roles: [reader]}}]", "keys.0.users"),
        (f"keys: [{{id: a, sha256: {'0' * 64}, tenant: '', users: '*', roles: [reader]}}]", "keys.0.tenant"),
        (f"keys: [{{id: a, sha256: {'0' * 64}, tenant: t, users: '*', roles: [root]}}]", "keys.0.roles.0"),
        (f"keys: [{{id: a, sha256: '{'0' * 64}', tenant: t, users: '*', roles: []}}]", "keys.0.roles"),
    ],
)
def test_wrong_key_files_name_the_place(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_key_file(text)


def test_an_id_or_hash_twice_is_refused() -> None:
    _, entry = new_key(tenant="t", users="*", roles=[Role.READER])
    with pytest.raises(SettingsError, match="twice"):
        parse_key_file(render_key_file(KeyFile(keys=[entry, entry])))


def test_new_keys_differ_and_are_long() -> None:
    made = {new_key(tenant="t", users="*", roles=[Role.READER])[0] for _ in range(50)}
    assert len(made) == 50
    assert all(len(key) > 50 for key in made)


def test_a_wrong_name_in_a_new_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="tenant"):
        new_key(tenant="", users="*", roles=[Role.READER])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_watched_file_follows_changes_and_survives_bad_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, clock = tmp_path / "file", Clock()

    def parse(text: str) -> str:
        if text == "bad":
            raise SettingsError("it is bad")
        return text

    path.write_text("one")
    watched = WatchedFile(path, parse, clock=clock)
    assert watched.load() == "one"
    path.write_text("two!")
    assert watched.get() == "one", "not looked at within the second"
    clock.now = 1.1
    assert watched.get() == "two!"
    path.write_text("bad")
    clock.now = 2.2
    with caplog.at_level(logging.ERROR):
        assert watched.get() == "two!"
        clock.now = 3.3
        assert watched.get() == "two!"
    assert len(caplog.records) == 1, "a broken file is logged once"
    path.unlink()
    clock.now = 4.4
    assert watched.get() == "two!"
    replacement = tmp_path / "new"
    replacement.write_text("tree")
    os.replace(replacement, path)
    clock.now = 5.5
    assert watched.get() == "tree"


async def test_a_removed_key_is_refused_after_the_reload(tmp_path: Path) -> None:
    key, path = key_file(tmp_path)
    keys = ApiKeys(path)
    clock = Clock()
    keys._file._clock = clock
    await keys.start()
    assert await keys.authenticate(bearer(key))
    path.write_text("keys: []")
    clock.now = 10
    with pytest.raises(Unauthenticated):
        await keys.authenticate(bearer(key))


ANY = Identity("k", "acme", None, frozenset(Role))
ANN = Identity("k", "acme", frozenset({"ann"}), frozenset({Role.READER}))
TWO = Identity("k", "acme", frozenset({"ann", "bob"}), frozenset({Role.WRITER}))


@pytest.mark.parametrize(
    ("identity", "headers", "user"),
    [
        (ANN, [], "ann"),
        (ANN, [b"ann"], "ann"),
        (ANN, [b" ann "], "ann"),
        (TWO, [b"bob"], "bob"),
        (ANY, [b"whoever"], "whoever"),
        (ANY, ["用户".encode()], "用户"),
        (ANY, [b"*"], "*"),
        (ANY, [b"%"], "%"),
        (ANY, [b"x" * 200], "x" * 200),
    ],
)
def test_scopes(identity: Identity, headers: list[bytes], user: str) -> None:
    assert scope_of(identity, headers) == Scope("acme", user)


@pytest.mark.parametrize(
    ("identity", "headers", "status"),
    [
        (ANY, [], 400),
        (TWO, [], 400),
        (TWO, [b"carl"], 403),
        (TWO, [b"*"], 403),
        (TWO, [b"ANN"], 403),
        (ANN, [b"bob"], 403),
        (ANN, [b"ann", b"ann"], 400),
        (ANN, [b"ann", b"bob"], 400),
        (ANY, [b""], 400),
        (ANY, [b"  "], 400),
        (ANY, [b"\xff"], 400),
        (ANY, [b"a\x00b"], 400),
        (ANY, [b"a\x1bb"], 400),
        (ANY, [b"x" * 201], 400),
    ],
)
def test_refused_scopes(identity: Identity, headers: list[bytes], status: int) -> None:
    with pytest.raises(HttpError) as caught:
        scope_of(identity, headers)
    assert caught.value.status == status


def test_roles_are_separate() -> None:
    reads, writes = {"MEMORY.GET", "MEMORY.QUERY", "MEMORY.SEARCH"}, {"MEMORY.WRITE", "MEMORY.UPDATE", "MEMORY.DELETE"}
    assert reads | writes == set(NODES)
    for role, allowed in [(Role.READER, reads), (Role.WRITER, writes), (Role.ADMIN, set()), (Role.PLATFORM, set())]:
        identity = Identity("k", "t", None, frozenset({role}))
        for node in NODES:
            if node in allowed:
                check_role(identity, node)
            else:
                with pytest.raises(Forbidden):
                    check_role(identity, node)
        check_role(identity, "MEMORY.RETRIEVE")


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "localhost.example.org"])
def test_mode_none_refuses_other_addresses(bind: str) -> None:
    with pytest.raises(SettingsError, match="loopback"):
        Loopback(bind=bind, tenant="default")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_loopback_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        (b"localhost:8080", True),
        (b"127.0.0.1", True),
        (b"[::1]:8080", True),
        (b"rebound.example.org", False),
        (b"rebound.example.org:8080", False),
        (b"127.0.0.1.example.org", False),
        (b"", False),
    ],
)
async def test_mode_none_serves_loopback_host_names_only(host: bytes, allowed: bool) -> None:
    gate = Loopback(bind="127.0.0.1", tenant="mine")
    if allowed:
        identity = await gate.authenticate({b"host": host})
        assert (identity.tenant, identity.users, identity.roles) == ("mine", None, frozenset(Role))
        return
    with pytest.raises(Forbidden):
        await gate.authenticate({b"host": host})


async def test_mode_none_refuses_a_missing_host() -> None:
    with pytest.raises(Forbidden):
        await Loopback(bind="::1", tenant="t").authenticate({})


def test_status_key(tmp_path: Path) -> None:
    path = tmp_path / "status"
    secret = "a" * 40
    path.write_text(secret + "\n")
    assert StatusKey(path).matches(bearer(secret))
    assert not StatusKey(path).matches(bearer("b" * 40))
    assert not StatusKey(path).matches({})
    assert not StatusKey(None).matches(bearer(secret))
    path.write_text("sha256:" + parse_status_key(secret))
    assert StatusKey(path).matches(bearer(secret))


@pytest.mark.parametrize("text", ["", "short", "sha256:12", "sha256:" + "g" * 64])
def test_weak_status_keys_are_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_status_key(text)


def test_names() -> None:
    assert all(valid_name(name) for name in ["a", "用户 1", "x" * 200, "用" * 85, "a@b.c", "*"])
    bad = ["", "x" * 201, "用" * 86, "a\n", "\x00", "\ud800", "\u200b", None, 5, ["a"]]
    assert not any(valid_name(name) for name in bad)
    assert MAX_NAME_BYTES <= MAX_SCOPE_BYTES, "what may call must be storable: it would be a 500 else"


def test_bearer_tokens() -> None:
    assert bearer_token({b"authorization": b"bearer  abc "}) == "abc"
    assert bearer_token({b"authorization": b"Bearer abc def"}) == "abc def"
    assert bearer_token({b"authorization": b"Token abc"}) is None
