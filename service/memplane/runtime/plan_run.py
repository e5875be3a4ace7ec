"""Running a plan: a generator that yields graph steps. Source: L-09 … L-12.

A graph's error is thrown into the plan, which may catch it and go on. Two things it cannot catch away: the iteration
limit and the cancellation of the whole loop. Then the generator is closed: its `finally` runs, and a graph that it
yields there does not.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Generator
from typing import Any

from memplane.runtime.errors import DefinitionError, LoopLimitReached
from memplane.runtime.loop import GraphStep, PlanLoop
from memplane.runtime.loop_run import RunGraph
from memplane.runtime.waiting import linked
from memplane.signal import Signal


async def run_plan(
    definition: PlanLoop,
    input: Any,  # noqa: A002
    run: RunGraph,
    *,
    max_iterations: int,
    signal: Signal | None,
) -> Any:
    """What the plan returns (None for an async generator)."""
    if signal is not None:
        signal.raise_if_aborted()
    steps = _Steps(definition.plan(input))
    try:
        step = await steps.advance(None)
        iteration = 0
        while step is not None:
            if signal is not None:
                signal.raise_if_aborted()
            if iteration >= max_iterations:
                raise LoopLimitReached("Loop iteration limit reached")
            step = await _take_step(steps, step, run, iteration, signal)
            iteration += 1
        return steps.result
    finally:
        await steps.close()


async def _take_step(
    steps: _Steps, step: GraphStep, run: RunGraph, iteration: int, signal: Signal | None
) -> GraphStep | None:
    try:
        with linked(signal, step.signal) as both:
            outputs = await run(iteration, step.graph, step.input, both)
    except Exception as error:  # noqa: BLE001 - thrown into the plan
        # Any error of a graph belongs to the plan, unless the whole loop was aborted: that cannot be caught away.
        if signal is not None:
            signal.raise_if_aborted()
        return await steps.throw(error)
    return await steps.advance(outputs)


class _Steps:
    """One interface over plain and async generators."""

    def __init__(self, generator: object) -> None:
        self.result: Any = None
        if not inspect.isgenerator(generator) and not inspect.isasyncgen(generator):
            raise DefinitionError("A Loop plan must be a generator function")
        self._generator: Generator[Any, Any, Any] | AsyncGenerator[Any, Any] = generator

    async def advance(self, value: Any) -> GraphStep | None:
        try:
            if isinstance(self._generator, AsyncGenerator):
                return _checked(await self._generator.asend(value))
            return _checked(self._generator.send(value))
        except StopIteration as stop:
            self.result = stop.value
            return None
        except StopAsyncIteration:
            return None

    async def throw(self, error: Exception) -> GraphStep | None:
        try:
            if isinstance(self._generator, AsyncGenerator):
                return _checked(await self._generator.athrow(error))
            return _checked(self._generator.throw(error))
        except StopIteration as stop:
            self.result = stop.value
            return None
        except StopAsyncIteration:
            return None

    async def close(self) -> None:
        """Run the plan's cleanup. A step yielded there does not run, and is no error of its own."""
        try:
            if isinstance(self._generator, AsyncGenerator):
                await self._generator.aclose()
            else:
                self._generator.close()
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                raise


def _checked(step: object) -> GraphStep:
    if not isinstance(step, GraphStep):
        raise DefinitionError("Loop plan must yield graphStep invocations")
    return step
