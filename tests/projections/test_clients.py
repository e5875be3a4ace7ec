"""Connections: clear errors without driver text, rotated credentials, no noise in logs and warnings."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import SecretStr

from memplane.errors import MemplaneError, SettingsError, TargetUnavailable
from memplane.projections.clients import MilvusConnection, Neo4jConnection, open_milvus, open_neo4j
from memplane.projections.errors import ProjectionMissing, ProjectionRefused, TargetTimeout
from memplane.settings import MilvusSettings, Neo4jSettings

SECRET = "s3cr3t-pa55word"


async def test_both_answer(milvus_settings: MilvusSettings, neo4j_settings: Neo4jSettings) -> None:
    milvus, neo4j = await open_milvus(milvus_settings), await open_neo4j(neo4j_settings)
    assert await milvus.healthy()
    assert await neo4j.healthy()
    assert await neo4j.run("RETURN $x AS x", {"x": [1, "é"]}) == [{"x": [1, "é"]}]
    await milvus.close()
    await neo4j.close()
    await milvus.close()
    await neo4j.close()


def unreachable_milvus() -> MilvusSettings:
    return MilvusSettings(uri="http://127.0.0.1:1", token=SecretStr(f"root:{SECRET}"), timeout=2)


def unreachable_neo4j() -> Neo4jSettings:
    return Neo4jSettings(uri="bolt://127.0.0.1:1", password=SecretStr(SECRET), timeout=2)


@pytest.mark.parametrize(
    "attempt",
    [lambda: open_milvus(unreachable_milvus()), lambda: open_neo4j(unreachable_neo4j())],
    ids=["milvus", "neo4j"],
)
async def test_nobody_there_says_so_and_nothing_more(
    attempt: Callable[[], Awaitable[object]], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(TargetUnavailable) as raised:
        await attempt()
    printed = "".join(capfd.readouterr())
    assert raised.value.__cause__ is None
    for text in (str(raised.value), caplog.text, printed):
        assert SECRET not in text
    assert "127.0.0.1:1" not in str(raised.value) + printed


async def test_unreachable_targets_are_unhealthy_and_then_fail_fast() -> None:
    milvus, neo4j = MilvusConnection(unreachable_milvus()), Neo4jConnection(unreachable_neo4j())
    assert not await milvus.healthy()
    assert not await neo4j.healthy()
    with pytest.raises(TargetUnavailable):
        await milvus.call("list_collections")
    with pytest.raises(TargetUnavailable):
        await neo4j.run("RETURN 1")
    await milvus.close()
    await neo4j.close()


async def test_a_rotated_milvus_token_takes_effect(milvus_settings: MilvusSettings, tmp_path: Path) -> None:
    assert milvus_settings.token is not None
    file = tmp_path / "token"
    file.write_text("root:wrong\n", encoding="utf-8")
    connection = MilvusConnection(milvus_settings.model_copy(update={"token": None, "token_file": file}))
    with pytest.raises(TargetUnavailable, match="credentials"):
        await connection.call("list_collections")
    file.write_text(milvus_settings.token.get_secret_value() + "\n", encoding="utf-8")
    assert isinstance(await connection.call("list_collections"), list)
    await connection.close()


@pytest.fixture
async def rotating(neo4j_settings: Neo4jSettings, tmp_path: Path) -> AsyncIterator[tuple[Neo4jSettings, Path]]:
    """A user of this test's own, since the server pauses a user after wrong passwords; its password is `right-one`."""
    admin = await open_neo4j(neo4j_settings)
    user = f"rotating_{uuid4().hex[:8]}"
    await admin.run("CREATE USER $user SET PASSWORD 'right-one' CHANGE NOT REQUIRED", {"user": user})
    file = tmp_path / "password"
    yield neo4j_settings.model_copy(update={"user": user, "password": None, "password_file": file}), file
    await admin.run("DROP USER $user", {"user": user})
    await admin.close()


async def test_a_rotated_neo4j_password_takes_effect(rotating: tuple[Neo4jSettings, Path]) -> None:
    settings, file = rotating
    file.write_text("wrong-one\n", encoding="utf-8")
    connection = Neo4jConnection(settings)
    with pytest.raises(TargetUnavailable, match="credentials"):
        await connection.run("RETURN 1")
    file.write_text("right-one\n", encoding="utf-8")
    assert await connection.run("RETURN 1 AS one") == [{"one": 1}]
    file.write_text("wrong-again\n", encoding="utf-8")
    assert not await connection.healthy()
    file.write_text("right-one\n", encoding="utf-8")
    assert await connection.healthy()
    await connection.close()


async def test_a_credential_file_that_is_gone_is_a_setting_that_cannot_work(
    milvus_settings: MilvusSettings, tmp_path: Path
) -> None:
    connection = MilvusConnection(milvus_settings.model_copy(update={"token_file": tmp_path / "nowhere"}))
    with pytest.raises(SettingsError, match="token_file cannot be read"):
        await connection.open()
    assert not await connection.healthy()
    await connection.close()


async def test_refusals_carry_a_code_and_no_text(
    milvus_settings: MilvusSettings, neo4j_settings: Neo4jSettings
) -> None:
    milvus, neo4j = await open_milvus(milvus_settings), await open_neo4j(neo4j_settings)
    refused: list[MemplaneError] = []
    for attempt in (
        milvus.call("describe_collection", "no_such_collection"),
        milvus.call("create_collection", "!illegal name!", dimension=2),
        neo4j.run("NOT CYPHER"),
        neo4j.run("RETURN 1 / 0"),
    ):
        with pytest.raises((ProjectionMissing, ProjectionRefused)) as raised:
            await attempt
        refused.append(raised.value)
    assert [type(error) for error in refused[:2]] == [ProjectionMissing, ProjectionRefused]
    assert str(refused[2]) == "neo4j refuses the call (Neo.ClientError.Statement.SyntaxError)"
    assert "illegal name" not in str(refused[1])
    assert await milvus.healthy()
    await milvus.close()
    await neo4j.close()


async def test_a_call_that_takes_too_long_is_a_timeout(neo4j_settings: Neo4jSettings) -> None:
    neo4j = await open_neo4j(neo4j_settings)
    with pytest.raises(TargetTimeout):
        await neo4j.run("UNWIND range(1, 100000000) AS x RETURN sum(x * x)", timeout=0.3)
    assert await neo4j.run("RETURN 1 AS one") == [{"one": 1}]
    await neo4j.close()
