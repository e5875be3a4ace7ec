"""What node handlers may touch: deny by default, exact lists, files inside one workspace. Source: S-01 … S-04.

The policy is a snapshot: nothing that the caller changes later has an effect.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from memplane.runtime.errors import DefinitionError, PermissionDenied
from memplane.signal import Signal

LISTS = ("tools", "network", "skills", "mcp")
FLAGS = ("read", "write", "execute")

Executor: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""`async executor({"command": […], "cwd": path or None, "signal", "timeoutMs"?, "maxOutputBytes"?})`.

It brings its own isolation."""


class Sandbox:
    """A policy, a workspace, an executor.

    policy: `{tools, network, skills, mcp: lists of names or ["*"], read, write, execute: booleans}`; absent is denied.
    workspace: the directory that `read_text` and `write_text` are confined to.
    executor: what really runs commands; without one `run` is refused even where the policy allows it.
    limits: `timeoutMs` and `maxOutputBytes` handed to the executor.
    """

    def __init__(
        self,
        policy: Mapping[str, Any] | None = None,
        *,
        workspace: str | os.PathLike[str] | None = None,
        executor: Executor | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.policy = check_policy({} if policy is None else policy)
        self.limits: Mapping[str, int] = MappingProxyType(dict(limits or {}))
        self._workspace = None if workspace is None else Path(workspace).resolve()
        self._executor = executor
        if executor is not None and not callable(executor):
            raise DefinitionError("Sandbox executor must be an async function")

    def allows(self, kind: str, name: str) -> bool:
        """Whether the list `kind` (tools, network, skills, mcp) holds `name` or `*`."""
        allowed = self.policy[kind]
        return name in allowed or "*" in allowed

    def check_tool(self, name: str) -> None:
        """Raises `PermissionDenied` ("Permission denied: tools:x")."""
        self._check("tools", name)

    def check_network(self, url: str) -> None:
        """Check the origin of a URL. Raises `PermissionDenied` ("Permission denied: network:<origin>")."""
        self._check("network", origin_of(url))

    def check(self, kind: str, name: str) -> None:
        """Check any of the lists. Raises `PermissionDenied`."""
        self._check(kind, name)

    async def read_text(self, path: str) -> str:
        """The text of a UTF-8 file of the workspace. Raises `PermissionDenied`, `OSError`."""
        target = self._confined("read", path)
        return await asyncio.to_thread(_read, self._root("read", path), target)

    async def write_text(self, path: str, text: str) -> None:
        """Write a UTF-8 file of the workspace; its directory must exist. Raises `PermissionDenied`, `OSError`."""
        target = self._confined("write", path)
        await asyncio.to_thread(_write, self._root("write", path), target, text)

    async def run(self, command: Sequence[str], *, cwd: str | None = None, signal: Signal | None = None) -> Any:
        """Run a command through the injected executor. Raises `PermissionDenied`."""
        if isinstance(command, str) or not command or not all(isinstance(part, str) for part in command):
            raise DefinitionError("Sandbox command must be a nonempty list of strings")
        if not self.policy["execute"] or self._executor is None:
            raise PermissionDenied("execute", command[0])
        if signal is not None:
            signal.raise_if_aborted()
        return await self._executor({"command": list(command), "cwd": cwd, "signal": signal, **self.limits})

    def _check(self, kind: str, name: str) -> None:
        if not self.allows(kind, name):
            raise PermissionDenied(kind, name)

    def _root(self, flag: str, path: str) -> Path:
        if self._workspace is None:
            raise PermissionDenied(flag, path)
        return self._workspace

    def _confined(self, flag: str, path: str) -> Path:
        """The real path of a permitted file, relative to the workspace. Links that leave it or dangle are refused."""
        if not self.policy[flag]:
            raise PermissionDenied(flag, path)
        root = self._root(flag, path)
        lexical = root / path
        real = Path(os.path.realpath(lexical))
        if not real.is_relative_to(root) or real == root or _dangles(root, lexical):
            raise PermissionDenied(flag, path)
        return real.relative_to(root)


def check_policy(policy: Mapping[str, Any]) -> Mapping[str, Any]:
    """A frozen, complete policy. Raises `DefinitionError` on unknown keys and wrong kinds."""
    if not isinstance(policy, Mapping):
        raise DefinitionError("Sandbox policy must be a mapping")
    if unknown := [key for key in policy if key not in (*LISTS, *FLAGS)]:
        raise DefinitionError(f"Unknown sandbox setting: {unknown[0]}")
    checked: dict[str, Any] = {}
    for name in LISTS:
        value = policy.get(name, ())
        if not isinstance(value, list | tuple | frozenset) or not all(isinstance(v, str) and v.strip() for v in value):
            raise DefinitionError(f"Sandbox {name} must be a list of nonempty strings")
        checked[name] = frozenset(value)
    for origin in checked["network"]:
        if origin != "*" and origin_of(origin) != origin:
            raise DefinitionError(f"Sandbox network must list origins (scheme://host:port), not {origin}")
    for name in FLAGS:
        value = policy.get(name, False)
        if not isinstance(value, bool):
            raise DefinitionError(f"Sandbox {name} must be true or false")
        checked[name] = value
    return MappingProxyType(checked)


def origin_of(url: str) -> str:
    """`scheme://host[:port]` of a URL, lower case, default ports left out. Raises `DefinitionError`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except (ValueError, AttributeError):
        raise DefinitionError("A network origin must be a URL with scheme and host") from None
    if not parts.scheme or not host:
        raise DefinitionError("A network origin must be a URL with scheme and host")
    if ":" in host:
        host = f"[{host}]"
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{host}" if port in (None, default) else f"{parts.scheme}://{host}:{port}"


def _dangles(root: Path, lexical: Path) -> bool:
    """Whether a symlink on the way points at nothing."""
    current = root
    for part in Path(os.path.normpath(lexical)).relative_to(root).parts:
        current = current / part
        if current.is_symlink() and not current.exists():
            return True
    return False


def _open_directory(root: Path, relative: Path) -> int:
    """The directory of `relative`, opened step by step: a link put there since the check is not followed."""
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for part in relative.parts[:-1]:
        try:
            following = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
        finally:
            os.close(directory)
        directory = following
    return directory


def _read(root: Path, relative: Path) -> str:
    directory = _open_directory(root, relative)
    try:
        with open(os.open(relative.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory), encoding="utf-8") as file:
            return file.read()
    finally:
        os.close(directory)


def _write(root: Path, relative: Path, text: str) -> None:
    directory = _open_directory(root, relative)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(relative.name, flags, 0o600, dir_fd=directory), "w", encoding="utf-8") as file:
            file.write(text)
    finally:
        os.close(directory)
