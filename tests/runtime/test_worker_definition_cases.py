"""define_worker: RT-08, M-62 and what can never work."""

from __future__ import annotations

import pytest

from memplane.runtime import DefinitionError, NodeDefinition, create_runtime, define_worker, graph


async def echo(input, ctx):
    return input


@pytest.mark.parametrize("blank", ["", "  ", None, 7])
def test_rt08_a_blank_type_is_refused(blank):
    with pytest.raises(DefinitionError, match="Worker type cannot be empty"):
        define_worker(type=blank, nodes={"A.B": echo})


@pytest.mark.parametrize("nodes", [{}, None, ["A.B"]])
def test_rt08_a_worker_without_nodes_is_refused(nodes):
    with pytest.raises(DefinitionError, match="at least one Node"):
        define_worker(type="A", nodes=nodes)


@pytest.mark.parametrize("node", ["", "A", "A.", ".B", "A B.C", 3])
def test_rt08_node_ids_are_qualified_names(node):
    with pytest.raises(DefinitionError, match="invalid Node ID"):
        define_worker(type="A", nodes={node: echo})


@pytest.mark.parametrize(("expose", "message"), [([], "at least one"), ("A.B", "at least one"), (["A.C"], "A.C")])
def test_rt08_expose_names_implemented_nodes(expose, message):
    with pytest.raises(DefinitionError, match=message):
        define_worker(type="A", nodes={"A.B": echo}, expose=expose)


def test_rt08_a_node_definition_must_fit_its_place():
    with pytest.raises(DefinitionError, match="cannot implement"):
        define_worker(type="A", nodes={"A.B": NodeDefinition("A.C", "A", echo)})
    with pytest.raises(DefinitionError, match="belongs to Worker X"):
        define_worker(type="A", nodes={"A.B": NodeDefinition("A.B", "X", echo)})
    assert define_worker(type="A", nodes={"A.B": NodeDefinition("A.B", "A", echo)}).nodes["A.B"] is echo


def test_rt08_handlers_are_functions_that_return():
    def generates(input, ctx):
        yield input

    async def generates_async(input, ctx):
        yield input

    for handler in ("text", None, generates, generates_async):
        with pytest.raises(DefinitionError, match=r"handler of A.B"):
            define_worker(type="A", nodes={"A.B": handler})


async def test_rt08_expose_hides_nodes_from_routing_but_not_from_internal_graphs():
    from memplane.runtime import NoWorkerAvailable

    async def outer(input, ctx):
        outputs = await ctx.run(graph("inner").node("n", "A.HIDDEN", [], lambda value: value), input)
        return outputs["n"]

    worker = define_worker(type="A", nodes={"A.OUTER": outer, "A.HIDDEN": echo}, expose=["A.OUTER"])
    runtime = create_runtime(workers=[worker])
    assert runtime.workers()[0]["capabilities"] == ["A.OUTER"]
    with pytest.raises(NoWorkerAvailable):
        await runtime.invoke("A.HIDDEN", 1)
    assert await runtime.invoke("A.OUTER", 5) == 5
    await runtime.close()


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "2", float("nan")])
def test_m62_concurrency_is_a_positive_integer(concurrency):
    with pytest.raises(DefinitionError, match=r"^Worker concurrency must be a positive integer$"):
        define_worker(type="A", nodes={"A.B": echo}, concurrency=concurrency)


def test_a_definition_is_a_snapshot():
    nodes = {"A.B": echo}
    worker = define_worker(type="A", nodes=nodes)
    nodes["A.C"] = echo
    assert list(worker.nodes) == ["A.B"]
    with pytest.raises(TypeError):
        worker.nodes["A.C"] = echo


def test_resources_and_dispose_must_be_functions():
    with pytest.raises(DefinitionError, match="resources"):
        define_worker(type="A", nodes={"A.B": echo}, resources={})
    with pytest.raises(DefinitionError, match="dispose"):
        define_worker(type="A", nodes={"A.B": echo}, dispose=3)
