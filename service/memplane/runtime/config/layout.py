"""Every key of `memplane.yaml`. Source: behaviours C-01, C-02, C-09; the built-in values are those of C-01."""

from __future__ import annotations

from types import MappingProxyType

from memplane.runtime.config.kinds import LARGEST, Choice, Document, Group, Named, Number, Text, Texts, Whole

MILLISECONDS = 2**31 - 1
PROVIDER_NAME = "[a-z][a-z0-9_]*"

BUILT_IN = MappingProxyType({"timeoutMs": 30_000, "maxTurns": 8, "loopMaxIterations": 32})
"""Values of `runtime` that hold without a file; an absent `graphConcurrency` is unlimited."""


def _time(about: str) -> Whole:
    return Whole(1, MILLISECONDS, f"{about}, in milliseconds")


def _count(about: str, highest: int = LARGEST, lowest: int = 1) -> Whole:
    return Whole(lowest, highest, about)


def _bytes(about: str, highest: int) -> Whole:
    return Whole(1, highest, f"{about}, in bytes")


GENERATION = Group(
    "defaults of model calls; each field of a request wins over its default",
    {
        "temperature": Number(0, 2, "randomness of sampling"),
        "topP": Number(0, 1, "share of probability that sampling looks at"),
        "topK": _count("candidates that sampling looks at"),
        "maxTokens": _count("longest answer, in tokens"),
        "stop": Texts("texts that end an answer"),
        "seed": Whole(-LARGEST, LARGEST, "seed for repeatable sampling, where the provider has one"),
    },
)

RUNTIME = Group(
    "how graphs, loops and calls run",
    {
        "timeoutMs": _time("time of one model call"),
        "maxTurns": _count("most model turns of one task"),
        "graphConcurrency": _count("graph nodes that run at a time; absent is unlimited"),
        "loopMaxIterations": _count("graphs that one loop may run"),
        "react": Group(
            "limits of an acting loop",
            {
                "maxActionCalls": _count("most tool calls", lowest=0),
                "maxTotalTokens": _count("most tokens of all its model calls together"),
            },
        ),
        "sandbox": Group(
            "limits of commands that the sandbox runs",
            {
                "timeoutMs": _time("time of one command"),
                "maxOutputBytes": _bytes("output of one command", 16 * 2**20),
            },
        ),
    },
)

_BRANCH = 16
INFER = Group(
    "the INFER worker",
    {
        "generation": GENERATION,
        "deliberate": Group(
            "choosing among several answers",
            {
                "mode": Choice(("select", "merge", "consensus", "debate"), "how answers are combined"),
                "selectCount": _count("answers that are kept"),
                "generation": GENERATION,
            },
        ),
        "constraints": Group(
            "limits of one chain of reasoning",
            {
                "maxSteps": _count("most steps"),
                "maxTotalTokens": _count("most tokens of all steps together"),
                "timeoutMs": _time("time of all steps together"),
            },
        ),
        "strategies": Group(
            "sizes of the reasoning strategies",
            {
                "cot": Group("chain of thought", {"rounds": _count("rounds", 64)}),
                "long-cot": Group("long chain of thought", {"rounds": _count("rounds", 64)}),
                "tot": Group(
                    "tree of thoughts",
                    {
                        "breadth": _count("branches of a node", _BRANCH),
                        "depth": _count("levels", _BRANCH),
                        "beamWidth": _count("branches kept per level", _BRANCH),
                    },
                ),
                "got": Group(
                    "graph of thoughts",
                    {"breadth": _count("branches of a node", _BRANCH), "depth": _count("levels", _BRANCH)},
                ),
                "self-consistency": Group("majority of answers", {"candidates": _count("answers", _BRANCH)}),
            },
        ),
    },
)

CONTEXT = Group(
    "the CONTEXT worker",
    {
        "policy": Group(
            "what a context may hold",
            {
                "maxInlineBytes": _bytes("content of one item as JSON", LARGEST),
                "maxItems": _count("items of one context"),
                "maxTokens": _count("estimated tokens of one context; absent is unlimited"),
                "duplicate": Choice(("replace", "keep-first", "reject"), "what a repeated item id does"),
                "missingRemoval": Choice(("ignore", "reject"), "what removing an absent id does"),
            },
        ),
        "cache": Group(
            "a shared state store",
            {"ttlMs": _time("life of a stored context since its last write"), "keyPrefix": Text("prefix of its keys")},
        ),
        "localCache": Group(
            "the in-memory state store",
            {"ttlMs": _time("life of a stored context since its last write"), "maxEntries": _count("contexts kept")},
        ),
        "queue": Group("serialises updates of one scope", {"maxPending": _count("operations that may wait")}),
    },
)

INTERACTION = Group(
    "the INTERACTION worker",
    {
        "commands": Group(
            "commands that tools run",
            {
                "maxEntries": _count("entries of one listing", 10_000),
                "maxOutputBytes": _bytes("output of one command", 2**20),
                "maxErrorBytes": _bytes("error output of one command", 64 * 2**10),
            },
        ),
        "webSearch": Group(
            "web search tools",
            {
                "timeoutMs": _time("time of one search"),
                "maxResponseBytes": _bytes("answer of the search service", 16 * 2**20),
            },
        ),
    },
)

_LIMIT = 10_000
MEMORY = Group(
    "the MEMORY worker",
    {
        "queryLimit": _count("memories of one QUERY page without a limit", _LIMIT),
        "searchLimit": _count("hits of one SEARCH without a limit", _LIMIT),
    },
)

RETRIEVAL = Group(
    "the RETRIEVAL worker",
    {
        "searchLimit": _count("candidates of one search without a limit", _LIMIT),
        "embedding": Group(
            "calls of embedding models",
            {"batchSize": _count("texts of one call", 2048), "dimensions": _count("length of every vector")},
        ),
        "hybrid": Group(
            "fusion of several searches",
            {
                "candidateLimit": _count("candidates asked of each branch", _LIMIT),
                "rrfK": _count("constant of reciprocal rank fusion"),
            },
        ),
        "rerank": Group("reordering", {"candidateLimit": _count("candidates that are reranked", _LIMIT)}),
    },
)

FILE = Group(
    "memplane runtime configuration",
    {
        "runtime": RUNTIME,
        "workers": Group(
            "defaults of the workers",
            {
                "infer": INFER,
                "context": CONTEXT,
                "interaction": INTERACTION,
                "memory": MEMORY,
                "retrieval": RETRIEVAL,
            },
        ),
        "shared": Group(
            "what several workers use",
            {
                "providers": Named(
                    "behaviour of model providers by name; addresses and keys belong in the environment",
                    PROVIDER_NAME,
                    Group(
                        "one provider",
                        {
                            "maxTokensField": Choice(
                                ("max_tokens", "max_completion_tokens"), "name of the length limit in requests"
                            ),
                            "options": Document("sent with every request of this provider"),
                        },
                    ),
                )
            },
        ),
    },
)
