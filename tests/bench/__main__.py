import argparse
import json
import sys
from collections.abc import Callable

from tests.bench import run, verify


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure ratios within one run.")
    commands = parser.add_subparsers(dest="command", required=True)
    verifying = commands.add_parser("verify", help="the verifier against bare signature checks")
    verifying.add_argument("--records", type=int, default=30_000, help="length of the thread (default: %(default)s)")
    verifying.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default: %(default)s)")
    running = commands.add_parser("run", help="runs against their signatures, their commits, and themselves")
    running.add_argument("--steps", type=int, default=500, help="gated steps of a plan (default: %(default)s)")
    running.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: %(default)s)")
    running.add_argument("--ungated", type=int, default=10_000, help="steps without a gate (default: %(default)s)")
    running.add_argument("--runs", type=int, default=1_000, help="concurrent runs (default: %(default)s)")
    for command in (verifying, running):
        command.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    parts: list[Callable[[], dict[str, float]]]
    if options.command == "verify":
        parts = [lambda: verify.measure(options.records, options.rounds)]
    else:
        parts = [
            lambda: run.measure(options.steps, options.rounds),
            lambda: run.measure_growth(options.ungated // 10, options.ungated),
            lambda: run.measure_many(options.runs, steps=3),
        ]
    figures: dict[str, float] = {}
    for part in parts:
        found = part()
        figures |= found
        if not options.json:
            for name, value in found.items():
                print(f"{name:<24} {value:,.3f}", flush=True)
    if options.json:
        json.dump(figures, sys.stdout)
        print()


if __name__ == "__main__":
    main()
