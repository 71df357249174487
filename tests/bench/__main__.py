import argparse
import json
import sys

from tests.bench import run, store, verify


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure ratios within one run.")
    commands = parser.add_subparsers(dest="command", required=True)
    verifying = commands.add_parser("verify", help="the verifier against bare signature checks")
    verifying.add_argument("--records", type=int, default=30_000, help="length of the thread (default: %(default)s)")
    verifying.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default: %(default)s)")
    running = commands.add_parser("run", help="gated steps in memory against their signatures")
    running.add_argument("--steps", type=int, default=500, help="gated steps of a plan (default: %(default)s)")
    running.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: %(default)s)")
    storing = commands.add_parser("store", help="gated steps on SQLite, in a file here, against signatures and commits")
    storing.add_argument("--steps", type=int, default=300, help="gated steps of a plan (default: %(default)s)")
    storing.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: %(default)s)")
    for command in (verifying, running, storing):
        command.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.command == "verify":
        figures = verify.measure(options.records, options.rounds)
    elif options.command == "store":
        figures = store.measure(options.steps, options.rounds)
    else:
        figures = run.measure(options.steps, options.rounds)
    if options.json:
        json.dump(figures, sys.stdout)
        print()
    else:
        for name, value in figures.items():
            print(f"{name:<24} {value:,.3f}")


if __name__ == "__main__":
    main()
