"""`memplane.yaml` as plain data: no duplicate keys, anchors, aliases, tags or merge keys. Source: behaviours C-02."""

from __future__ import annotations

from typing import Any

import yaml

from memplane.errors import SettingsError


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader without what makes a file mean more than it shows."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _error(event.start_mark, "anchors and aliases are not allowed")
        if getattr(event, "tag", None):
            raise _error(event.start_mark, "tags are not allowed")
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                raise _error(key_node.start_mark, "keys must be strings")
            if key_node.value in seen:
                raise _error(key_node.start_mark, f"duplicate key {key_node.value}")
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=True)


def parse_yaml(text: str) -> Any:
    """The one document of the file. Raises `SettingsError` with line and column."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        raise _error(error.problem_mark, error.problem or "it is not valid YAML") from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise SettingsError("memplane.yaml: it is not valid YAML") from None


def _error(mark: yaml.Mark | None, problem: str) -> SettingsError:
    where = f" line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return SettingsError(f"memplane.yaml{where}: {problem}")
