"""`docs/consistency.md`: every sentence of the seed's sections 15.1 to 15.4 has a test, and every test is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "consistency.md"
ROW = re.compile(r"^\| (15\.\d) \| ([^|]+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)

SENTENCES = {
    "15.1": [
        "业务更新成功、outbox 插入失败时，整个事务回滚",
        "合并任一步骤失败时，所有记录和事件均不变化",
        "并发更新同一记忆时，仅一个期望版本成功",
    ],
    "15.2": [
        "同一事件执行两次，目标状态不变",
        "v2 先于 v1 到达时，最终保留 v2",
        "v1 delete 晚于 v2 upsert 时，不误删 v2",
        "外部调用成功但确认失败时，重试可安全完成",
        "worker 崩溃后，过期 processing 任务可重新领取",
        "一个目标库故障时，另一个目标库继续消费",
    ],
    "15.3": [
        "能识别并修复目标库缺失对象",
        "能识别并删除孤儿对象",
        "能通过 version/hash 修复陈旧对象",
        "能发现并修复 Neo4j 缺失或悬空关系边",
        "多次扫描同一差异不会产生无限 repair 事件",
    ],
    "15.4": [
        "在 PG commit 前、commit 后分别终止进程，验证恢复后所有派生存储最终与 PostgreSQL 收敛",
        "在目标库调用前、调用后、outbox 确认前分别终止进程，验证恢复后所有派生存储最终与 PostgreSQL 收敛",
    ],
}
"""As the seed has them; 15.4 is one sentence there, about two processes."""


def table() -> list[tuple[str, str, list[str]]]:
    """(section, sentence, tests) of the page."""
    return [
        (section, sentence, re.findall(r"`([^`]+)`", tests))
        for section, sentence, tests in ROW.findall(PAGE.read_text(encoding="utf-8"))
    ]


def test_the_page_has_every_sentence_once_and_in_order() -> None:
    found = [(section, sentence) for section, sentence, _ in table()]
    assert found == [(section, sentence) for section, sentences in SENTENCES.items() for sentence in sentences]


@pytest.mark.parametrize(("section", "sentence", "tests"), table(), ids=[sentence for _, sentence, _ in table()])
def test_a_sentence_has_tests_that_exist(section: str, sentence: str, tests: list[str]) -> None:
    assert tests
    for name in tests:
        path, _, function = name.partition("::")
        module = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function in defined, f"{section} {sentence}: {name} is gone"
