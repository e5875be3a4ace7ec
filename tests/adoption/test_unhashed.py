"""Nobody projects or judges a memory that waits for its hash: neither a rebuild nor the reconciler (see 0020)."""

from __future__ import annotations

import pytest

from memplane.adoption.run import adopt
from memplane.adoption.settle import settle
from memplane.outbox.events import Family, Needs, Target
from memplane.rebuild.pages import copy_page, next_page
from memplane.reconcile.truth import standings
from tests.adoption.conftest import MakeWorld
from tests.outbox.world import DictTarget

LTM = "memplane.long_term_memory"


@pytest.mark.parametrize("marked", [True, False])
async def test_a_rebuild_leaves_out_what_is_marked(old_world: MakeWorld, marked: bool) -> None:
    world = await old_world("seed", 10)
    await adopt(world.database, world.adoption, targets=())
    await world.sql.execute(f"UPDATE {LTM} SET content = 'changed' WHERE id = 3")
    if not marked:
        assert await settle(world.database, targets=()) == 1
    page = await next_page(world.database, 0, 100)
    assert page is not None
    target = DictTarget(Target.MILVUS)
    await copy_page(world.database, target, page, Family.NODE, overwrite=False)
    assert target.held == {number: 2 if number == 3 else 1 for number in range(1, 10) if not (marked and number == 3)}


async def test_for_the_reconciler_a_marked_memory_is_busy(old_world: MakeWorld) -> None:
    world = await old_world("seed", 10)
    await adopt(world.database, world.adoption, targets=())
    await world.sql.execute(f"UPDATE {LTM} SET content = 'changed' WHERE id = 3")
    needs = Needs(fields=True)
    standing = await standings(world.database, needs, Target.MILVUS, [2, 3, 99])
    assert {memory_id: one.busy for memory_id, one in standing.items()} == {2: False, 3: True, 99: False}
    await settle(world.database, targets={Target.MILVUS})
    assert (await standings(world.database, needs, Target.MILVUS, [3]))[3].busy, "now its event is on the way"
