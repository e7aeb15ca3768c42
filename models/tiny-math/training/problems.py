"""Draws grade-school word problems with worked solutions, and writes them as evaluation records.

    python problems.py --seed 7 --count 200 --scale 1 > arithmetic.jsonl

A (seed, index, scale) triple always gives the same problem: nothing is drawn from anything but its own generator.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Step = tuple[str, int, int, int]
"""Operator, left operand, right operand, result."""

NAMES = [
    "Ada", "Ben", "Cara", "Dan", "Elif", "Femi", "Gus", "Hana", "Ivo", "Jun", "Kofi", "Lena", "Mira", "Nils",
    "Omar", "Pia", "Quin", "Rosa", "Sami", "Tara", "Uma", "Vera", "Wen", "Yara", "Zoe", "Amir", "Bea", "Chen",
    "Dina", "Eli",
]  # fmt: skip
THINGS = [
    "apples", "books", "coins", "shells", "stamps", "marbles", "pencils", "stickers", "cards", "buttons",
    "cookies", "eggs", "flowers", "keys", "lemons", "nuts", "oranges", "pears", "ribbons", "stones",
]  # fmt: skip
BOXES = ["boxes", "bags", "jars", "crates", "baskets", "shelves", "trays", "packs"]


@dataclass(frozen=True)
class Problem:
    """A word problem: its text, its worked steps and its integer answer."""

    question: str
    steps: tuple[Step, ...]
    answer: int

    @property
    def level(self) -> int:
        """Number of steps."""
        return len(self.steps)


def record(seed: int, index: int, scale: float = 1.0) -> dict[str, Any]:
    """The evaluation record at ``index`` of the split drawn with ``seed``; the answer is in GSM8K's style."""
    family, problem = draw(random.Random(f"{seed}/{index}"), scale)
    return {
        "id": f"{family}-{index:05d}",
        "question": problem.question,
        "answer": f"{worked(problem)}\n#### {problem.answer}",
        "family": family,
        "level": problem.level,
    }


def draw(rng: random.Random, scale: float = 1.0) -> tuple[str, Problem]:
    """Draw one problem; returns its family's name and the problem.

    The model is trained at ``scale`` 1; a larger one draws larger numbers than it has seen, so the share that it
    solves falls as ``scale`` grows.
    """
    family = rng.choice(list(FAMILIES))
    return family, FAMILIES[family](rng, scale)


def worked(problem: Problem) -> str:
    """The chain of thought: one equation for each step."""
    return " ".join(f"{a} {op} {b} = {c}." for op, a, b, c in problem.steps)


class _Draft:
    """Gathers sentences and steps while a problem is drawn; ``value`` is the running result."""

    def __init__(self, rng: random.Random, scale: float) -> None:
        self.rng = rng
        self.scale = scale
        self.text: list[str] = []
        self.steps: list[Step] = []
        self.value = 0

    def number(self, low: int, high: int) -> int:
        """An operand; ``scale`` stretches the range that it is drawn from."""
        return self.rng.randint(low, max(low, round(high * self.scale)))

    def say(self, sentence: str) -> None:
        self.text.append(sentence)

    def step(self, op: str, left: int, right: int) -> int:
        """Record a step and return its result."""
        result = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[op]
        self.steps.append((op, left, right, result))
        return result

    def apply(self, op: str, right: int) -> None:
        """A step that changes the running result."""
        self.value = self.step(op, self.value, right)

    def problem(self, question: str) -> Problem:
        return Problem(" ".join([*self.text, question]), tuple(self.steps), self.value)


def _ledger(rng: random.Random, scale: float) -> Problem:
    """A person's stock of things goes up and down."""
    d = _Draft(rng, scale)
    (who, other), thing = rng.sample(NAMES, 2), rng.choice(THINGS)
    d.value = d.number(5, 99)
    d.say(f"{who} has {d.value} {thing}.")
    for _ in range(rng.randint(1, 6)):
        kind = rng.choice(["buy", "find", "give", "lose", "double"])
        if kind == "double" and d.value <= 150:
            d.say(f"Then the number of {thing} doubles.")
            d.apply("*", 2)
        elif kind in ("give", "lose") and d.value > 6:
            k = min(d.number(2, 60), d.value - 1)
            verb = f"gives {k} to {other}" if kind == "give" else f"loses {k}"
            d.say(rng.choice([f"Then {who} {verb}.", f"After that {who} {verb}."]))
            d.apply("-", k)
        else:
            k = d.number(2, 80)
            verb = "finds" if kind == "find" else "buys"
            d.say(rng.choice([f"Then {who} {verb} {k} more.", f"{who} {verb} {k} more."]))
            d.apply("+", k)
    return d.problem(f"How many {thing} does {who} have now?")


def _packing(rng: random.Random, scale: float) -> Problem:
    """Equal groups, then a change, perhaps shared out again."""
    d = _Draft(rng, scale)
    (who,), thing, box = rng.sample(NAMES, 1), rng.choice(THINGS), rng.choice(BOXES)
    n, each = d.number(3, 19), d.number(3, 29)
    d.say(f"{who} has {n} {box} with {each} {thing} in each.")
    d.value = n
    d.apply("*", each)
    if rng.random() < 0.6:
        k = min(d.number(2, 90), d.value - 1)
        if rng.random() < 0.5:
            d.say(f"{who} throws away {k} {thing}.")
            d.apply("-", k)
        else:
            d.say(f"{who} adds {k} loose {thing}.")
            d.apply("+", k)
    if rng.random() < 0.5:
        divisors = [k for k in range(2, 13) if d.value % k == 0]
        if divisors:
            k = rng.choice(divisors)
            d.say(f"All {thing} are shared equally among {k} children.")
            d.apply("/", k)
            return d.problem(f"How many {thing} does each child get?")
    return d.problem(f"How many {thing} are there in total?")


def _shopping(rng: random.Random, scale: float) -> Problem:
    """Two kinds of goods are bought and paid for with one note."""
    d = _Draft(rng, scale)
    (who,), (x, y) = rng.sample(NAMES, 1), rng.sample(THINGS, 2)
    n, p, m, q = d.number(2, 12), d.number(2, 25), d.number(2, 12), d.number(2, 25)
    d.say(f"{who} buys {n} {x} for ${p} each and {m} {y} for ${q} each.")
    first, second = d.step("*", n, p), d.step("*", m, q)
    d.value = d.step("+", first, second)
    if rng.random() < 0.5:
        note = (d.value // 50 + 1) * 50
        d.say(f"{who} pays with ${note}.")
        d.value = d.step("-", note, d.value)
        return d.problem(f"How much change in dollars does {who} get?")
    return d.problem(f"How many dollars does {who} spend?")


def _comparison(rng: random.Random, scale: float) -> Problem:
    """Holdings given relative to one another; the total is asked for."""
    d = _Draft(rng, scale)
    (p, q, r), thing = rng.sample(NAMES, 3), rng.choice(THINGS)
    base = d.number(3, 40)
    d.say(f"{p} has {base} {thing}.")
    holdings, last = [base], p
    for who in (q, r)[: rng.randint(1, 2)]:
        k = d.number(2, 30)
        kind = rng.choice(["more", "times", "fewer"])
        if kind == "fewer" and holdings[-1] > k:
            d.say(f"{who} has {k} fewer than {last}.")
            holdings.append(d.step("-", holdings[-1], k))
        elif kind == "times" and holdings[-1] < 60:
            t = rng.randint(2, 5)
            d.say(f"{who} has {t} times as many as {last}.")
            holdings.append(d.step("*", holdings[-1], t))
        else:
            d.say(f"{who} has {k} more than {last}.")
            holdings.append(d.step("+", holdings[-1], k))
        last = who
    d.value = holdings[0]
    for holding in holdings[1:]:
        d.apply("+", holding)
    return d.problem(f"How many {thing} do they have together?")


def _rate(rng: random.Random, scale: float) -> Problem:
    """A daily rate over some days, with some sold or lost."""
    d = _Draft(rng, scale)
    (who,), thing = rng.sample(NAMES, 1), rng.choice(THINGS)
    rate, days = d.number(3, 48), d.number(2, 30)
    d.say(f"{who} collects {rate} {thing} a day for {days} days.")
    d.value = rate
    d.apply("*", days)
    if rng.random() < 0.5 and d.value % 2 == 0:
        d.say("Half of them are sold.")
        d.apply("/", 2)
    if rng.random() < 0.5 and d.value > 4:
        k = min(d.number(2, 50), d.value - 1)
        d.say(f"Then {k} get lost.")
        d.apply("-", k)
    return d.problem(f"How many {thing} are left?")


FAMILIES: dict[str, Callable[[random.Random, float], Problem]] = {
    "ledger": _ledger,
    "packing": _packing,
    "shopping": _shopping,
    "comparison": _comparison,
    "rate": _rate,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write evaluation records as JSON lines to standard output.")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--scale", type=float, default=1.0, help="stretches the numbers beyond those trained on")
    args = parser.parse_args()
    for index in range(args.count):
        print(json.dumps(record(args.seed, index, args.scale)))


if __name__ == "__main__":
    main()
