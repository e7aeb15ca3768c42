"""Run the benchmarks and put their tables into ``benchmarks/README.md``, each between its own markers.

python benchmarks/run_all.py --gsm8k DIR           # all of them, about 45 minutes on two idle cores
python benchmarks/run_all.py overhead idle_cost    # some; the other tables stay
python benchmarks/run_all.py --quick               # fewer rounds, to see that all of them run
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from machine import ROOT, run

FOLDER = Path(__file__).parent
README = FOLDER / "README.md"
DATA = [str(ROOT / "evals" / "data" / name) for name in ("arithmetic.jsonl", "arithmetic-hard.jsonl")]
ARGUMENTS: dict[str, tuple[list[str], list[str]]] = {
    "gsm8k_replay": ([], []),
    "tiny_math_verdicts": ([], []),
    "overhead": ([], ["--quick"]),
    "idle_cost": ([], ["--rounds=3"]),
    "journal": ([], ["--episodes=2000", "--read=10000"]),
    "reward_pool": ([], []),
    "hf_engine": (["--model", str(ROOT / "models" / "tiny-math"), *DATA], ["--rounds=1", "--limit=20"]),
    "engines_paced": ([], ["--rows=100", "--rounds=1"]),
    "engines_cpu": ([], ["--rounds=1", "--samples=1"]),
}
"""Each script's arguments, and those that make it quick."""


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ARGUMENTS)}; all by default")
    parser.add_argument("--gsm8k", type=Path, metavar="DIR", help="GSM8K's files, see gsm8k_replay.py")
    parser.add_argument("--quick", action="store_true", help="print the tables and leave the README alone")
    options = parser.parse_args()
    unknown = set(options.names) - set(ARGUMENTS)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(ARGUMENTS)}")
    for name in options.names or ARGUMENTS:
        arguments, quick = ARGUMENTS[name]
        if name == "gsm8k_replay":
            if options.gsm8k is None:
                print("gsm8k_replay: left out, it needs --gsm8k DIR", file=sys.stderr)
                continue
            arguments = [f"--data={options.gsm8k.resolve()}"]
        print(f"{name} …", file=sys.stderr, flush=True)
        command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments, *(quick if options.quick else [])]
        output = run(command).output.strip()
        print(output, end="\n\n", flush=True)
        if not options.quick:
            README.write_text(replaced(README.read_text(), name, output))


def replaced(text: str, name: str, output: str) -> str:
    """The README with a benchmark's new output between its markers."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    body = output if "|" in output else f"```text\n{output}\n```"
    new, count = pattern.subn(lambda found: f"{found[1]}\n{body}\n\n{found[2]}", text)
    if count != 1:
        raise SystemExit(f"{README}: {count} places for {name}; write <!-- {name} --> and <!-- /{name} --> once")
    return new


if __name__ == "__main__":
    main()
