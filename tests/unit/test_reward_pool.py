"""What a reward function may do, and that it costs its own call alone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_areal_eval.api import Score
from pytest_areal_eval.errors import ConfigError, GraderError, GraderTimeout
from pytest_areal_eval.rewards.pool import RewardPool

GSM8K = "pytest_areal_eval.rewards.gsm8k_reward_fn"


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with RewardPool(1, timeout_s=20) as one:
        yield one


def grade(pool: RewardPool, fn: str | Callable[..., Any], *args: Any, **options: Any) -> Score:
    return asyncio.run(pool.score(fn, *args, where="gsm8k[0042]", **options))


def add(a: float, b: float = 0.0) -> float:
    return a + b


async def add_later(a: float) -> float:
    await asyncio.sleep(0)
    return a


class Judge:
    def __init__(self, reward: float) -> None:
        self.reward = reward

    def method(self, _: str) -> float:
        return self.reward

    def __call__(self, _: str) -> float:
        return self.reward


def fail(value: str) -> float:
    raise ValueError(f"cannot grade {value}")


def exit_with(code: int) -> None:
    os._exit(code)


def die_by(signum: int) -> None:
    os.kill(os.getpid(), signum)


def spin() -> None:
    while True:
        pass


def hang_in_c() -> int:
    return len(str(9**9**9))


def burn(cpu_s: float) -> float:
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass
    return 1.0


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return 1.0


def fill_memory() -> float:
    hoard = []
    while True:
        hoard.append(bytearray(16 << 20))


def fork_and_return_twice() -> float:
    return 0.25 if os.fork() == 0 else 0.75


def start_children(folder: str, then: str) -> float:
    """A child, a grandchild in a session of its own, and a daemon whose parent is gone; then hang, exit or return."""
    sleeper = f"echo $$ > {folder}/%s; exec sleep 300"
    subprocess.Popen(["sh", "-c", sleeper % "child"])
    subprocess.Popen(["sh", "-c", f"setsid sh -c '{sleeper % 'grandchild'}' & wait"])
    subprocess.run(["sh", "-c", f"setsid sh -c '{sleeper % 'daemon'}' &"], check=True)
    while len([name for name in os.listdir(folder) if Path(folder, name).stat().st_size]) < 3:
        time.sleep(0.01)
    if then == "exit":
        os._exit(0)
    if then == "hang":
        spin()
    return 1.0


def leave_a_bomb(delay_s: float) -> float:
    threading.Timer(delay_s, os._exit, [7]).start()
    return 1.0


def close_every_descriptor() -> float:
    os.closerange(3, 1000)
    return 1.0


def pid() -> dict[str, float]:
    return {"reward": 1.0, "pid": os.getpid()}


def keepers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "rewards.keeper" in " ".join(p.cmdline())]


def nap_and_tell() -> dict[str, float]:
    time.sleep(0.3)
    return pid()


def is_gone(process: int, within_s: float = 5.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not psutil.pid_exists(process):
            return True
        time.sleep(0.02)
    return False


def test_every_kind_of_callable_is_called(pool: RewardPool) -> None:
    offset = 0.25
    assert grade(pool, add, 0.5).value == 0.5
    assert grade(pool, add, 0.5, b=0.25).value == 0.75
    assert grade(pool, "math.sqrt", 0.25).value == 0.5
    assert grade(pool, lambda a: a + offset, 0.5).value == 0.75
    assert grade(pool, functools.partial(add, b=0.5), 0.25).value == 0.75
    assert grade(pool, Judge(0.5).method, "x").value == 0.5
    assert grade(pool, Judge(0.25), "x").value == 0.25
    assert grade(pool, add_later, 0.5).value == 0.5
    assert grade(pool, math.cos, 0.0).value == 1.0


def test_a_bound_method_is_sent_as_it_is_now(pool: RewardPool) -> None:
    judge = Judge(0.25)
    assert grade(pool, judge.method, "x").value == 0.25
    judge.reward = 0.75
    assert grade(pool, judge.method, "x").value == 0.75


def test_hundreds_of_closures_are_each_called(pool: RewardPool) -> None:
    def closure(n: int) -> Callable[[], float]:
        return lambda: n / 1000

    assert [grade(pool, closure(n)).value for n in range(600)] == [n / 1000 for n in range(600)]


def test_the_whole_score_comes_back(pool: RewardPool) -> None:
    score = grade(pool, GSM8K, "", r"\boxed{\$1,200}", [], [], answer="#### 1,300")
    assert score == Score(0.0, {}, "1200", "1300")


def test_what_raises_names_item_function_and_the_user_s_line(pool: RewardPool) -> None:
    with pytest.raises(GraderError) as caught:
        grade(pool, fail, "it")
    assert str(caught.value) == "gsm8k[0042]: reward function 'fail' raised ValueError: cannot grade it"
    assert "in fail" in caught.value.traceback
    assert "test_reward_pool.py" in caught.value.traceback
    assert "worker.py" not in caught.value.traceback


@pytest.mark.parametrize(
    ("fn", "args", "message"),
    [
        (exit_with, (0,), "'exit_with' ended its process with exit status 0"),
        (exit_with, (3,), "'exit_with' ended its process with exit status 3"),
        ("sys.exit", (1,), "'sys.exit' raised SystemExit: 1"),
        (die_by, (signal.SIGSEGV,), "'die_by' was killed by SIGSEGV"),
        (die_by, (signal.SIGKILL,), "'die_by' was killed by SIGKILL"),
        (die_by, (signal.SIGRTMIN + 5,), f"'die_by' was killed by signal {signal.SIGRTMIN + 5}"),
        ("threading.Lock", (), "the reward is lock"),
        (close_every_descriptor, (), "'close_every_descriptor' ended its process"),
        (lambda: float("nan"), (), "the reward is nan"),
        (lambda: 1.5, (), "the reward is 1.5, outside 0 to 1"),
        (lambda: None, (), "the reward is NoneType None"),
        ("math.sqtr", (1,), "'math.sqtr' cannot be loaded: it raised AttributeError: Module 'math' has no attribute"),
        ("no_such_module.f", (), "'no_such_module.f' cannot be loaded: it raised ImportError"),
        ("math.pi", (), "'math.pi' cannot be loaded: it raised TypeError: math.pi is a float, not a function"),
        (3, (), "3 is a int, not a function"),
        (GSM8K, ("", "5", [], [], "none"), "raised ValueError: the gold answer 'none' has no number"),
    ],
)
def test_a_fault_is_an_error_of_its_call_alone(pool: RewardPool, fn: Any, args: Any, message: str) -> None:
    with pytest.raises(GraderError) as caught:
        grade(pool, fn, *args)
    assert str(caught.value).startswith("gsm8k[0042]: ")
    assert message in str(caught.value)
    assert grade(pool, add, 1.0).value == 1.0


def test_arguments_that_cannot_be_sent_are_an_error(pool: RewardPool) -> None:
    with pytest.raises(GraderError, match=r"gsm8k\[0042\]: tuple cannot be sent to another process"):
        grade(pool, add, threading.Lock())


def test_a_wider_range_may_be_given(pool: RewardPool) -> None:
    assert grade(pool, add, -3.0, reward_range=(-5, 5)).value == -3.0
    assert grade(pool, add, -300.0, reward_range=None).value == -300.0


def test_a_limit_of_years_is_no_error(pool: RewardPool) -> None:
    assert grade(pool, add, 1.0, timeout_s=1e12).value == 1.0


def test_columns_may_have_any_name(pool: RewardPool) -> None:
    columns = {"where": 0.25, "timeout_s": 0.25, "fn": 0.25, "self": 0.25}
    score = asyncio.run(pool.grade(lambda **columns: sum(columns.values()), (), columns, where="[1]"))
    assert score.value == 1.0


@pytest.mark.parametrize("fn", [spin, hang_in_c, functools.partial(time.sleep, 60)])
def test_what_hangs_is_killed_at_its_limit(pool: RewardPool, fn: Any) -> None:
    grade(pool, add, 1.0)
    started = time.monotonic()
    with pytest.raises(GraderTimeout, match=r"gsm8k\[0042\]: .* did not return within 0.5 s and was killed"):
        grade(pool, fn, timeout_s=0.5)
    assert 0.5 <= time.monotonic() - started < 1.5
    assert grade(pool, add, 1.0).value == 1.0


def _nested(step: str) -> str:
    return functools.reduce(lambda inner, _: step % inner, range(60), "7")


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9^{9}}}",
        "(10^{7})!",
        "2^{2^{40}}",
        r"\binom{10^9}{5\cdot10^8}",
        r"\sum_{k=1}^{10^8}k^k",
        _nested(r"\frac{1}{%s}"),
        _nested(r"\frac{1}{1+%s}"),
    ],
)
@pytest.mark.parametrize("fn", [GSM8K, "pytest_areal_eval.rewards.math_reward_fn"])
def test_an_answer_that_hangs_mathematics_ends_at_the_limit(pool: RewardPool, fn: str, answer: str) -> None:
    """C72: hangs in parse and compare that thread timeouts cannot stop; what does not hang is judged wrong."""
    grade(pool, fn, "", "5", [], [], answer="5")
    started = time.monotonic()
    with contextlib.suppress(GraderTimeout):
        assert grade(pool, fn, "", rf"\boxed{{{answer}}}", [], [], answer="5", timeout_s=0.5).value == 0.0
    assert time.monotonic() - started < 1.5
    assert grade(pool, fn, "", "5", [], [], answer="5").value == 1.0


def test_the_pool_keeps_its_size_after_kills() -> None:
    """C72: a hang that holds a process of the pool for good."""
    with RewardPool(2) as pool:

        async def session() -> list[Any]:
            hangs = [pool.score(spin, where=f"[{n}]", timeout_s=0.5) for n in range(4)]
            assert all(
                isinstance(error, GraderTimeout) for error in await asyncio.gather(*hangs, return_exceptions=True)
            )
            naps = [pool.score(nap_and_tell, where=f"[{n}]") for n in range(4)]
            return [score.metrics["pid"] for score in await asyncio.gather(*naps)]

        assert len(set(asyncio.run(session()))) == 2


def test_the_clock_starts_with_the_work_and_a_kill_delays_only_what_waits() -> None:
    with RewardPool(1) as pool:

        async def session() -> list[Any]:
            calls = [pool.score(nap, 0.4, where=f"[{n}]", timeout_s=1.0) for n in range(5)]
            calls.insert(1, pool.score(spin, where="[hang]", timeout_s=0.5))
            return await asyncio.gather(*calls, return_exceptions=True)

        first, hung, *rest = asyncio.run(session())
        assert isinstance(hung, GraderTimeout)
        assert [score.value for score in (first, *rest)] == [1.0] * 5


def test_rewards_that_burn_cpu_side_by_side_are_right_or_timed_out_never_wrong() -> None:
    """C38: limits of milliseconds turn load into wrong answers."""
    with RewardPool(2, timeout_s=20) as pool:

        async def session() -> list[Any]:
            calls = [pool.score(burn, 0.2, where=f"[{n}]") for n in range(8)]
            return await asyncio.gather(*calls, return_exceptions=True)

        results = asyncio.run(session())
        assert all(isinstance(r, GraderTimeout) or r.value == 1.0 for r in results)
        assert any(isinstance(r, Score) for r in results)


def test_memory_is_limited_and_freed() -> None:
    """C89: a reward that eats memory."""
    with RewardPool(1, memory_mb=1024) as pool:
        before = grade(pool, pid).metrics["pid"]
        with pytest.raises(GraderError, match="MemoryError") as caught:
            grade(pool, fill_memory)
        assert "A grading process may use 1024 MB; raise the memory limit" in str(caught.value)
        assert grade(pool, pid).metrics["pid"] != before


@pytest.mark.parametrize("then", ["hang", "exit"])
def test_all_that_a_reward_started_goes_with_it(pool: RewardPool, tmp_path: Path, then: str) -> None:
    """C89: children that outlive the limit, in their own sessions and without a parent."""
    with pytest.raises(GraderTimeout if then == "hang" else GraderError):
        grade(pool, start_children, str(tmp_path), then, timeout_s=3)
    started = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert len(started) == 3
    assert all(is_gone(process, within_s=0.5) for process in started)


def test_no_process_is_left_after_the_pool_closed(tmp_path: Path) -> None:
    """C89: no child and no zombie after the session."""
    others = keepers()
    with RewardPool(2) as pool:
        assert grade(pool, start_children, str(tmp_path), "return").value == 1.0
        mine = [p for p in keepers() if p not in others]
        below = [p.pid for keeper in mine for p in [keeper, *keeper.children(recursive=True)]]
        assert len(below) >= 6  # the keeper, its grader, and the three that this started with a shell above one
    assert all(is_gone(int(file.read_text()), within_s=0.5) for file in tmp_path.iterdir())
    assert all(is_gone(process, within_s=0.5) for process in below)


def test_a_reward_that_forks_and_returns_twice_answers_once(pool: RewardPool) -> None:
    assert grade(pool, fork_and_return_twice).value == 0.75
    assert [grade(pool, add, n / 10).value for n in range(5)] == [n / 10 for n in range(5)]


def test_a_grader_that_dies_between_calls_costs_none(pool: RewardPool) -> None:
    first = grade(pool, pid).metrics["pid"]
    assert grade(pool, leave_a_bomb, 0.05).value == 1.0
    assert is_gone(int(first))
    assert grade(pool, add, 0.5).value == 0.5


def test_a_keeper_that_was_killed_costs_at_most_the_running_call() -> None:
    others = keepers()
    with RewardPool(1) as pool:
        grade(pool, add, 1.0)
        for keeper in set(keepers()) - set(others):
            keeper.kill()
        with contextlib.suppress(GraderError):
            grade(pool, add, 1.0)
        assert grade(pool, add, 1.0).value == 1.0


def test_any_thread_and_any_event_loop_may_grade(pool: RewardPool) -> None:
    values: list[float] = []
    threads = [threading.Thread(target=lambda n=n: values.append(grade(pool, add, n / 8).value)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(values) == [n / 8 for n in range(8)]


def test_a_cancelled_call_leaves_the_pool_well(pool: RewardPool) -> None:
    async def session() -> float:
        running = asyncio.create_task(pool.score(nap, 0.3, where="[1]"))
        waiting = asyncio.create_task(pool.score(nap, 0.3, where="[2]"))
        await asyncio.sleep(0.1)
        running.cancel()
        waiting.cancel()
        assert all(
            isinstance(e, asyncio.CancelledError)
            for e in await asyncio.gather(running, waiting, return_exceptions=True)
        )
        return (await pool.score(add, 0.5, where="[3]")).value

    assert asyncio.run(session()) == 0.5


def test_closing_ends_what_runs_and_what_waits_with_an_error() -> None:
    pool = RewardPool(1)

    async def session() -> list[Any]:
        calls = [asyncio.create_task(pool.score(nap, 60, where=f"[{n}]", timeout_s=60)) for n in range(2)]
        await asyncio.sleep(1.0)
        await asyncio.to_thread(pool.close)
        return await asyncio.gather(*calls, return_exceptions=True)

    started = time.monotonic()
    messages = [str(error) for error in asyncio.run(session())]
    assert messages == [f"[{n}]: the reward pool was closed before this was graded" for n in range(2)]
    assert time.monotonic() - started < 10
    pool.close()
    with pytest.raises(GraderError, match="the reward pool was closed"):
        grade(pool, add, 1.0)


@pytest.mark.parametrize(("workers", "timeout_s", "message"), [(0, 1, "0 workers"), (1, 0, "a time limit of 0 s")])
def test_a_pool_that_could_not_grade_is_refused(workers: int, timeout_s: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RewardPool(workers, timeout_s)


def test_functions_of_modules_that_no_path_leads_to_are_found(pool: RewardPool, tmp_path: Path) -> None:
    """pytest's importlib mode; and two files of one name, as its prepend mode may leave them."""
    functions = []
    for folder, reward in (("a", 0.25), ("b", 0.75)):
        file = tmp_path / folder / "test_maze.py"
        file.parent.mkdir()
        file.write_text(
            f"REWARD = {reward}\ndef solves():\n    return REWARD\n"
            "class Maze:\n    def solved(self):\n        return REWARD\n"
        )
        spec = importlib.util.spec_from_file_location("areal_eval_maze", file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["areal_eval_maze"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        functions.append(module.solves)
        assert grade(pool, module.solves).value == reward
        assert grade(pool, module.Maze().solved).value == reward
    del sys.modules["areal_eval_maze"]


def test_a_slow_import_is_not_the_reward_s_time(
    pool: RewardPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time; time.sleep(1)\ndef one(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert grade(pool, "slow_to_import.one", timeout_s=0.5).value == 1.0


@pytest.mark.parametrize("gold", [r"\frac{63}{400}", "$0.1575$"])
def test_mathematics_is_the_same_in_a_grader_in_a_thread_and_here(pool: RewardPool, gold: str) -> None:
    """C70, C71: signals that only work in the main thread, and a parse that differs elsewhere."""
    from pytest_areal_eval.rewards.math import math_reward_fn

    def in_a_thread(*args: Any, **columns: Any) -> Any:
        from concurrent.futures import ThreadPoolExecutor

        from pytest_areal_eval.rewards.math import math_reward_fn

        with ThreadPoolExecutor(1) as threads:
            return threads.submit(math_reward_fn, *args, **columns).result()

    arguments: tuple[str, str, list[int], list[int]] = ("", r"\boxed{\frac{63}{400}}", [], [])
    here = math_reward_fn(*arguments, answer=gold)
    assert here.value == 1.0
    assert grade(pool, math_reward_fn, *arguments, answer=gold) == here
    assert grade(pool, in_a_thread, *arguments, answer=gold) == here


def run_script(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_what_rewards_print_is_not_on_the_terminal_and_the_parent_imports_no_mathematics() -> None:
    script = """
        import asyncio, sys
        from pytest_areal_eval.rewards import RewardPool
        def noisy():
            print("noise"); print("noise", file=sys.stderr); __import__("os").system("echo noise; echo noise >&2")
            return 1
        with RewardPool(1) as pool:
            print(asyncio.run(pool.score(noisy, where="[1]")).value)
        assert not {"math_verify", "sympy", "torch", "numpy"} & set(sys.modules)
    """
    with run_script(script) as process:
        assert process.communicate(timeout=60) == ("1.0\n", "")


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    script = f"""
        import asyncio, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pytest_areal_eval.rewards import RewardPool
        pool = RewardPool(1)
        asyncio.run(pool.score("test_reward_pool.start_children", {str(tmp_path)!r}, "hang", where="[1]", timeout_s=60))
    """
    with run_script(script) as process:
        until = time.monotonic() + 30
        while len([f for f in tmp_path.iterdir() if f.stat().st_size]) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        tree = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
        process.kill()
        process.communicate()
    assert len(tree) >= 5
    assert all(is_gone(p) for p in tree)


def test_a_script_that_forgets_to_close_ends_and_leaves_nothing() -> None:
    script = """
        import asyncio
        from pytest_areal_eval.rewards import AsyncRewardWrapper
        wrapper = AsyncRewardWrapper(lambda *args, **columns: columns["answer"])
        print(asyncio.run(wrapper("p", "c", [], [], answer=0.5)))
        import os
        print(os.popen(f"pgrep -P {os.getpid()} -f rewards.keeper").read().split()[0])
    """
    with run_script(script) as process:
        out, err = process.communicate(timeout=60)
    reward, keeper = out.split()
    assert (reward, err) == ("0.5", "")
    assert is_gone(int(keeper))
