"""The servers that the tests speak to: PostgreSQL, Milvus and Neo4j, started once and shared.

`python -m tests.stack up|down|status` drives them from a shell, the `stack` fixture from pytest. Each has a password
of its own; data and addresses live in `.memplane/test-stack`. `MEMPLANE_TEST_STACK=FILE` names the addresses of
servers of your own instead (same form as `stack.json`).
"""

from tests.stack.control import FOLDER, KEEP_VARIABLE, down, join, leave, status, up
from tests.stack.model import Stack, StackError

__all__ = ["FOLDER", "KEEP_VARIABLE", "Stack", "StackError", "down", "join", "leave", "status", "up"]
