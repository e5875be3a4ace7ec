"""JSON schemas of the six nodes and of errors, for the OpenAPI document. Source: seed `000`, design 3 to 5."""

from __future__ import annotations

from typing import Any

from memplane.contracts import MAX_LIMIT

Schema = dict[str, Any]


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: list[str] | None = None, /, **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    return schema | {"required": required} if required else schema


def _list(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


NAME: Schema = {"type": "string", "minLength": 1}
ANY: Schema = {"description": "any JSON value, null included"}
VERSION: Schema = {"type": "integer", "minimum": 0}
TIME: Schema = {"type": "string", "format": "date-time"}
LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}
KEY: Schema = {"type": "string", "minLength": 1, "maxLength": 512, "description": "unique in its scope"}
FILTER: Schema = {
    "type": "object",
    "description": "Columns (id, key, createdAt, updatedAt, version, importance, category, tags, slot_hint, "
    "expires_at) or metadata fields (metadata.x), compared by equality or by $gt $gte $lt $lte $ne $in $exists "
    "$contains; combined by $and $or $not.",
    "examples": [{"category": "preference"}, {"importance": {"$gte": 0.5}}],
}
METADATA: Schema = {
    "type": "object",
    "description": "Free fields beside the reserved ones.",
    "properties": {
        "importance": {"type": "number", "minimum": 0, "maximum": 1},
        "category": {"type": "string"},
        "tags": _list({"type": "string"}),
        "slot_hint": {"type": "string"},
        "expires_at": TIME,
        "relations": _list(_object(["type", "target"], type=NAME, target=NAME)),
    },
}

SCHEMAS: dict[str, Schema] = {
    "MemoryItem": _object(
        ["id", "content"],
        id=NAME,
        key=NAME,
        content=ANY,
        metadata={"type": "object"},
        version=VERSION,
        createdAt=TIME,
        updatedAt=TIME,
    ),
    "NodeError": _object(
        ["code", "message"],
        code={"type": "string", "examples": ["INVALID_INPUT", "CONFLICT", "NOT_FOUND", "SEARCH_UNAVAILABLE"]},
        message={"type": "string"},
    ),
    "GetInput": _object(ids=_list(NAME, maxItems=MAX_LIMIT), keys=_list(NAME, maxItems=MAX_LIMIT))
    | {"description": "At least one of the two.", "anyOf": [{"required": ["ids"]}, {"required": ["keys"]}]},
    "QueryInput": _object(
        filter=FILTER,
        limit=LIMIT | {"default": 100},
        cursor=NAME,
        orderBy=_list(
            _object(
                ["field"],
                field={"enum": ["id", "key", "createdAt", "updatedAt", "importance", "version"]},
                direction={"enum": ["asc", "desc"]},
            )
        ),
    ),
    "SearchInput": _object(
        ["query"],
        query={
            "description": "a text, or {text?, vector?}",
            "anyOf": [{"type": "string"}, _object(text={"type": "string"}, vector=_list({"type": "number"}))],
        },
        strategy={"type": "string", "minLength": 1, "examples": ["hybrid", "vector", "keyword", "graph"]},
        filter=FILTER,
        limit=LIMIT | {"default": 10},
        options={"type": "object"},
    ),
    "WriteInput": _object(
        ["memories"],
        memories=_list(_object(["content"], content=ANY, key=KEY, metadata=METADATA), maxItems=MAX_LIMIT),
    ),
    "UpdateInput": _object(
        ["memories"],
        memories=_list(
            _object(["id"], id=NAME, content=ANY, metadata=METADATA, expectedVersion=VERSION)
            | {
                "description": "An absent field stays as it is; metadata replaces the whole object.",
                "anyOf": [{"required": ["content"]}, {"required": ["metadata"]}],
            },
            maxItems=MAX_LIMIT,
        ),
    ),
    "DeleteInput": _object(
        ["ids"],
        ids=_list(NAME, maxItems=MAX_LIMIT),
        expectedVersions={"type": "object", "additionalProperties": VERSION},
    ),
    "RequestError": _object(["error", "requestId"], error=_ref("NodeError"), requestId={"type": "string"}),
}

_OUTPUTS: dict[str, Schema] = {
    "MEMORY.GET": _list(_ref("MemoryItem")),
    "MEMORY.QUERY": _object(["items"], items=_list(_ref("MemoryItem")), nextCursor=NAME),
    "MEMORY.SEARCH": _list(
        _object(["memory"], memory=_ref("MemoryItem"), score={"type": "number"}, metadata={"type": "object"})
    ),
    "MEMORY.WRITE": _list(_ref("MemoryItem")),
    "MEMORY.UPDATE": _list(_ref("MemoryItem")),
    "MEMORY.DELETE": _object(["deleted"], deleted=_list(NAME)),
}

_SUMMARIES = {
    "MEMORY.GET": "Read memories by id or key",
    "MEMORY.QUERY": "List memories by filter, in pages",
    "MEMORY.SEARCH": "Find memories by meaning, words and relations",
    "MEMORY.WRITE": "Create memories, all or none",
    "MEMORY.UPDATE": "Change content or metadata, all or none",
    "MEMORY.DELETE": "Delete memories",
}

EXAMPLES: dict[str, Any] = {
    "MEMORY.GET": {"ids": ["1"], "keys": ["preference"]},
    "MEMORY.QUERY": {"filter": {"category": "preference"}, "limit": 20},
    "MEMORY.SEARCH": {"query": "which language does she prefer", "limit": 5},
    "MEMORY.WRITE": {
        "memories": [{"key": "preference", "content": "prefers Chinese", "metadata": {"importance": 0.8}}]
    },
    "MEMORY.UPDATE": {"memories": [{"id": "1", "content": "prefers English", "expectedVersion": 1}]},
    "MEMORY.DELETE": {"ids": ["1"]},
}


def _result(node: str) -> Schema:
    common = {"executionId": NAME, "node": {"const": node}}
    success = _object(
        ["executionId", "node", "status", "output"], **common, status={"const": "success"}, output=_OUTPUTS[node]
    )
    failure = _object(
        ["executionId", "node", "status", "error"],
        **common,
        status={"enum": ["failed", "cancelled", "timeout"]},
        error=_ref("NodeError"),
    )
    return {"oneOf": [success, failure]}


def _error(description: str) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": _ref("RequestError")}}}


ERROR_RESPONSES: dict[str, Schema] = {
    "400": _error("The body is not acceptable JSON, a parameter is wrong, or X-Memory-User is missing"),
    "401": _error("No credential, or one that is unknown or expired"),
    "403": _error("The credential does not allow this"),
    "408": _error("The body did not arrive in time"),
    "413": _error("The body is too large"),
    "415": _error("Content-Type is not application/json"),
    "503": _error("PostgreSQL is away, or too many calls are in flight; Retry-After tells when to try again"),
    "504": _error("The operation did not end in time; it may have taken effect"),
}

_HEADERS = [
    {
        "name": "X-Memory-User",
        "in": "header",
        "required": False,
        "description": "whose memories; required when the credential serves several users",
        "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[0-9A-Za-z_.@-]+$"},
    }
]


def node_operation(node: str) -> Schema:
    """The operation object of one node."""
    kind = node.removeprefix("MEMORY.").title()
    answered = {
        "description": "The node's result, success or not",
        "headers": {
            "X-Memory-Degraded": {
                "description": "projections that did not answer and were left out of a search",
                "schema": {"type": "string"},
            }
        },
        "content": {"application/json": {"schema": _result(node)}},
    }
    return {
        "tags": ["nodes"],
        "summary": _SUMMARIES[node],
        "operationId": kind.lower(),
        "parameters": _HEADERS,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref(f"{kind}Input"), "example": EXAMPLES[node]}},
        },
        "responses": {"200": answered, **ERROR_RESPONSES},
    }
