"""The sandbox: S-01 … S-04."""

from __future__ import annotations

import os

import pytest

from memplane.runtime import DefinitionError, PermissionDenied, Sandbox


def test_s01_everything_is_denied_by_default():
    sandbox = Sandbox()
    with pytest.raises(PermissionDenied, match=r"^Permission denied: tools:x$"):
        sandbox.check_tool("x")
    with pytest.raises(PermissionDenied, match=r"^Permission denied: network:https://api.example.com$"):
        sandbox.check_network("https://api.example.com/v1/search?q=1")
    for kind in ("skills", "mcp"):
        with pytest.raises(PermissionDenied):
            sandbox.check(kind, "x")
    assert issubclass(PermissionDenied, PermissionError)


def test_s01_lists_match_exactly_or_by_star():
    sandbox = Sandbox({"tools": ["search"], "skills": ["*"]})
    sandbox.check_tool("search")
    sandbox.check("skills", "anything")
    for name in ("Search", "search2", "sear", "*", ""):
        with pytest.raises(PermissionDenied):
            sandbox.check_tool(name)


def test_s02_network_permission_is_the_exact_origin():
    sandbox = Sandbox({"network": ["https://api.example.com", "http://h:8080"]})
    sandbox.check_network("https://api.example.com/any/path")
    sandbox.check_network("https://api.example.com:443/")  # the default port is the same origin
    sandbox.check_network("http://h:8080")
    for url in (
        "http://api.example.com",
        "https://api.example.com:8443",
        "https://example.com",
        "http://h",
        "http://h:80",
    ):
        with pytest.raises(PermissionDenied, match="network:"):
            sandbox.check_network(url)
    # What stands before an @ is no host.
    with pytest.raises(PermissionDenied, match=r"network:https://evil.example"):
        sandbox.check_network("https://api.example.com@evil.example/")


@pytest.mark.parametrize(
    "origin", ["https://h/path", "https://h/", "h", "https://", "https://H", "https://h?x", "https://u@h"]
)
def test_s02_an_origin_with_a_path_is_refused_at_construction(origin):
    with pytest.raises(DefinitionError, match=r"origin"):
        Sandbox({"network": [origin]})


@pytest.mark.parametrize(
    "policy",
    [
        {"execute": "false"}, {"read": 1}, {"write": None}, {"tools": "all"}, {"tools": None}, {"network": [None]},
        {"tools": [""]}, {"mcp": [3]}, {"unknown": []}, [], "all",
    ],
)  # fmt: skip
def test_s03_malformed_policies_are_refused(policy):
    with pytest.raises(DefinitionError, match="andbox"):
        Sandbox(policy)


def test_s03_the_policy_is_a_snapshot():
    policy = {"tools": ["a"], "read": False}
    sandbox = Sandbox(policy)
    policy["tools"].append("b")
    policy["read"] = True
    assert not sandbox.allows("tools", "b")
    assert sandbox.policy["read"] is False
    with pytest.raises(TypeError):
        sandbox.policy["read"] = True


@pytest.fixture
def workspace(tmp_path):
    root = tmp_path / "work"
    (root / "sub").mkdir(parents=True)
    (root / "inside.txt").write_text("inside")
    (tmp_path / "secret.txt").write_text("secret")
    os.symlink(tmp_path / "secret.txt", root / "leaves.txt")
    os.symlink(tmp_path, root / "up")
    os.symlink(root / "nowhere", root / "dangling.txt")
    os.symlink(tmp_path / "new.txt", root / "dangling_out.txt")
    os.symlink(root / "inside.txt", root / "alias.txt")
    return root


OUTSIDE = [
    "../secret.txt",
    "leaves.txt",
    "up/secret.txt",
    "sub/../../secret.txt",
    "dangling.txt",
    "dangling_out.txt",
    ".",
]


async def test_s04_files_of_the_workspace_are_read_and_written(workspace):
    sandbox = Sandbox({"read": True, "write": True}, workspace=workspace)
    assert await sandbox.read_text("inside.txt") == "inside"
    assert await sandbox.read_text("alias.txt") == "inside"
    assert await sandbox.read_text("sub/../inside.txt") == "inside"
    assert await sandbox.read_text(str(workspace / "inside.txt")) == "inside"
    await sandbox.write_text("sub/new.txt", "neü")
    assert (workspace / "sub" / "new.txt").read_text("utf-8") == "neü"
    with pytest.raises(FileNotFoundError):
        await sandbox.read_text("absent.txt")


@pytest.mark.parametrize("path", [*OUTSIDE, "/etc/passwd"])
async def test_s04_nothing_leaves_the_workspace(workspace, path):
    sandbox = Sandbox({"read": True, "write": True}, workspace=workspace)
    with pytest.raises(PermissionDenied, match="read:"):
        await sandbox.read_text(path)
    with pytest.raises(PermissionDenied, match="write:"):
        await sandbox.write_text(path, "x")
    assert (workspace.parent / "secret.txt").read_text() == "secret"
    assert not (workspace.parent / "new.txt").exists()


async def test_s04_a_link_that_appears_after_the_check_is_not_followed(workspace):
    from memplane.runtime.sandbox import _read, _write

    (workspace / "sub" / "file.txt").write_text("x")
    os.rename(workspace / "sub", workspace / "gone")
    os.symlink(workspace.parent, workspace / "sub")
    with pytest.raises(OSError):
        _read(workspace, (workspace / "sub" / "secret.txt").relative_to(workspace))
    with pytest.raises(OSError):
        _write(workspace, (workspace / "leaves.txt").relative_to(workspace), "x")
    assert (workspace.parent / "secret.txt").read_text() == "secret"


async def test_s04_flags_and_a_workspace_are_needed(workspace):
    for sandbox in (Sandbox({}, workspace=workspace), Sandbox({"read": True, "write": True})):
        with pytest.raises(PermissionDenied):
            await sandbox.read_text("inside.txt")
        with pytest.raises(PermissionDenied):
            await sandbox.write_text("inside.txt", "x")


async def test_s04_run_needs_the_permission_and_an_executor():
    ran = []

    async def executor(request):
        ran.append(request)
        return {"exitCode": 0}

    for sandbox in (Sandbox({"execute": True}), Sandbox({}, executor=executor)):
        with pytest.raises(PermissionDenied, match="execute:ls"):
            await sandbox.run(["ls"])
    allowed = Sandbox({"execute": True}, executor=executor, limits={"timeoutMs": 5, "maxOutputBytes": 6})
    assert await allowed.run(["ls", "-l"], cwd="sub") == {"exitCode": 0}
    assert ran == [{"command": ["ls", "-l"], "cwd": "sub", "signal": None, "timeoutMs": 5, "maxOutputBytes": 6}]
    for command in ("ls", [], [1]):
        with pytest.raises(DefinitionError, match="command"):
            await allowed.run(command)
    with pytest.raises(DefinitionError, match="executor"):
        Sandbox({}, executor="bash")
