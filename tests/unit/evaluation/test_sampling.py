from __future__ import annotations

import threading
import time

import pytest
from tests.helpers.scripted_eval import STOP, Engine, Task, Tokenizer, problems

from broaden.errors import DataError, MetricError, ResumeError, UsageError, WorkerError
from broaden.evaluation import conditions, evaluate, request_key
from broaden.records import (
    Completion,
    FinishReason,
    Problem,
    Request,
    Sample,
    SampleSet,
    Sampling,
    Verdict,
)
from broaden.seeds import stream

T06 = Sampling(temperature=0.6, max_new_tokens=8, entropy=True)


def draw(engine: Engine | None = None, **changes: object) -> SampleSet:
    arguments: dict[str, object] = {"samples": 4, "sampling": T06, "seed": 7, "chunk": 2} | changes
    ps = arguments.pop("problems", problems(5))
    return evaluate(engine or Engine(), Tokenizer(), Task(), ps, **arguments)  # type: ignore[arg-type]


def test_a_sample_is_keyed_by_task_problem_and_index() -> None:
    engine = Engine()
    got = draw(engine)
    assert [(s.problem_id, s.sample) for s in got.samples] == [
        (f"p{i}", m) for i in range(5) for m in range(4)
    ]
    assert engine.keys == [stream(7, "eval", "fake", f"p{i}", m) for i in range(5) for m in range(4)]
    assert request_key(7, "fake", "p1", 2) == stream(7, "eval", "fake", "p1", 2) == got.samples[6].seed
    assert got.samples[0].mean_entropy == 0.5
    assert got.samples[0].prompt_tokens == 3
    assert len({s.token_ids for s in got.samples}) > 10


@pytest.mark.parametrize("stop_after", [1, 2])
@pytest.mark.parametrize("chunk", [1, 2, 64])
def test_resumed_equals_uninterrupted_and_draws_only_what_is_missing(stop_after: int, chunk: int) -> None:
    whole = draw()
    stored: list[Sample] = []

    class Killed(Exception):
        pass

    def sink(new: list[Sample]) -> None:
        stored.extend(new)
        if len(stored) >= stop_after * 8:
            raise Killed

    with pytest.raises(Killed):
        draw(sink=sink)
    kept = stored[:-3]  # a part of a problem is there
    engine, later = Engine(), []
    again = draw(engine, existing=kept, sink=later.extend, chunk=chunk)
    assert again == whole
    assert len(engine.keys) == 20 - len(kept)
    assert set(later) == set(whole.samples) - set(kept)


def test_chunks_do_not_matter_and_nothing_missing_asks_nothing() -> None:
    assert draw(chunk=1) == draw(chunk=64)
    engine = Engine()
    assert draw(engine, existing=draw().samples) == draw()
    assert engine.calls == 0


def test_fewer_samples_reuse_and_more_samples_extend() -> None:
    engine = Engine()
    assert draw(engine, samples=2, existing=draw().samples).samples == draw(samples=2).samples
    assert engine.calls == 0
    draw(engine, samples=6, existing=draw().samples)
    assert len(engine.keys) == 10


def test_seed_twice_and_another_seed() -> None:
    assert draw() == draw()
    assert {s.token_ids for s in draw().samples} != {s.token_ids for s in draw(seed=8).samples}


def test_samples_of_another_seed_or_prompt_are_refused() -> None:
    with pytest.raises(ResumeError, match="another seed or task"):
        draw(seed=8, existing=draw().samples)
    other = [Sample.from_json({**s.to_json(), "prompt_tokens": 4}) for s in draw().samples]
    with pytest.raises(ResumeError, match="another model or prompt"):
        draw(existing=other)


def test_progress_counts_what_was_there() -> None:
    seen: list[tuple[int, int]] = []
    draw(existing=draw().samples[:8], on_progress=lambda done, tokens: seen.append((done, tokens)))
    assert seen == [(9, 4), (16, 32), (17, 36), (20, 48)]


def test_prompts_are_checked_before_any_compute() -> None:
    engine = Engine()
    with pytest.raises(
        UsageError, match=r"5 of 5 prompts do not fit: the context is 10 tokens, 'p0' has 3"
    ) as error:
        draw(engine, max_context=10)
    assert "--max-new-tokens 7" in error.value.fix
    assert engine.calls == 0
    draw(engine, max_context=11)
    assert engine.calls == 3


def test_bad_requests() -> None:
    with pytest.raises(UsageError, match="copies of one"):
        draw(sampling=Sampling(temperature=0.0))
    with pytest.raises(UsageError, match="at least 1"):
        draw(samples=0)
    with pytest.raises(UsageError, match="no problems"):
        draw(problems=[])
    with pytest.raises(DataError, match="'p0'"):
        draw(problems=problems(1) + problems(2))


def test_a_degenerate_run_fails_but_greedy_and_near_deterministic_ones_do_not() -> None:
    def copies(entropy: tuple[float, ...] | None) -> Engine:
        return Engine(lambda request: Completion((1, 1, STOP), "stop", entropy=entropy))

    stored: list[Sample] = []
    with pytest.raises(MetricError, match="all 4 samples of each of 5 problems are identical"):
        draw(copies((1.0, 1.0, 1.0)), sink=stored.extend)
    assert len(stored) == 20
    with pytest.raises(MetricError, match="degenerate"):
        draw(copies(None))
    draw(copies((0.001, 0.001, 0.0)))
    draw(copies(None), sampling=Sampling(temperature=0.1))
    draw(copies((1.0, 1.0, 1.0)), samples=1, sampling=Sampling(temperature=0.0))


@pytest.mark.parametrize("chunk", [1, 2, 64])
def test_threads_change_nothing(chunk: int) -> None:
    stored: list[Sample] = []
    assert draw(judge_threads=3, chunk=chunk, sink=stored.extend) == draw()
    assert tuple(stored) == draw().samples


class Slow(Task):
    """Judges nothing before the engine has been called `calls` times, and notes when it judged."""

    def __init__(self, engine: Engine, calls: int) -> None:
        self.engine, self.calls, self.judged_at = engine, calls, list[int]()

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        until = time.monotonic() + 10
        while self.engine.calls < self.calls and time.monotonic() < until:
            time.sleep(0.001)
        self.judged_at.append(self.engine.calls)
        return super().judge(problem, completion, finish)


def test_a_chunk_is_judged_while_the_next_is_generated() -> None:
    engine = Engine()
    task = Slow(engine, 2)
    found = evaluate(engine, Tokenizer(), task, problems(4), samples=4, sampling=T06, seed=7, chunk=2,
                     judge_threads=2)  # fmt: skip
    assert found.samples == draw(problems=problems(4)).samples
    assert (
        task.judged_at == [2] * 16
    )  # with one thread the first chunk would be judged after one call, if ever


def test_an_interruption_keeps_what_is_judged_already() -> None:
    class Stopped(Exception):
        pass

    judged = threading.Semaphore(0)

    class Noting(Task):
        def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
            verdict = super().judge(problem, completion, finish)
            judged.release()
            return verdict

    def stop(request: Request) -> Completion:
        if request.key in second:
            for _ in range(8):
                assert judged.acquire(timeout=10)
            raise Stopped
        return Engine._default(request)

    second = {request_key(7, "fake", f"p{i}", m) for i in (2, 3) for m in range(4)}
    stored: list[Sample] = []
    with pytest.raises(Stopped):
        evaluate(Engine(stop), Tokenizer(), Noting(), problems(4), samples=4, sampling=T06, seed=7, chunk=2,
                 sink=stored.extend, judge_threads=2)  # fmt: skip
    assert tuple(stored) == draw(problems=problems(4)).samples[:8]
    assert draw(problems=problems(4), existing=stored) == draw(problems=problems(4))


def test_a_judge_that_fails_ends_the_call() -> None:
    class Broken(Task):
        def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
            raise WorkerError("no judge")

    for threads in (1, 2):
        with pytest.raises(WorkerError, match="no judge"):
            evaluate(Engine(), Tokenizer(), Broken(), problems(4), samples=4, sampling=T06, seed=7, chunk=1,
                     judge_threads=threads)  # fmt: skip


def test_conditions_name_what_a_reader_needs() -> None:
    got = draw().conditions
    assert got == conditions(Engine(), Task(), problems(5), samples=4, sampling=T06, seed=7)
    assert got["temperature"] == 0.6
    assert got["task_version"] == "1"
    assert "logits at temperature 1 on trajectories drawn at temperature 0.6" in got["entropy"]
    SampleSet.from_json(draw().to_json())
