"""The `ropewalk` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import RopewalkError

_EPILOG = """\
start here:
  ropewalk run configs/quickstart.yaml      measure, and write tables and figures
  ropewalk plan configs/llama3-8b.yaml      what a sweep would run
  ropewalk methods                          what can stand in `methods:`
"""


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweep", type=Path, metavar="SWEEP", help="the sweep's YAML file")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="results folder (default: results/NAME)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="change the sweep, e.g. --set seed=1 --set models.0.path=zoo:llama-500k",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ropewalk",
        description="Measure language models past the length they were trained at: perplexity, "
        "attention entropy and passkey retrieval under every way to scale the rotary embedding.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    run = commands.add_parser("run", help="run a sweep; carries on where it stopped")
    _add_sweep(run)
    run.add_argument("--quiet", action="store_true", help="no progress on standard error")
    plan = commands.add_parser("plan", help="show what a sweep would run, and what is done")
    _add_sweep(plan)
    report = commands.add_parser("report", help="make tables and figures again, without a model")
    report.add_argument("results", type=Path, metavar="DIR", help="a results folder")
    commands.add_parser("methods", help="list the methods and their fields")
    commands.add_parser("zoo", help="list the models that ship with ropewalk")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from harness.spec import load_sweep

    sweep = load_sweep(arguments.sweep, arguments.overrides)  # before torch is loaded
    from harness.runner import run_sweep
    from harness.tables import read_tables
    from harness.terminal import print_outcome

    folder = run_sweep(sweep, arguments.results, quiet=arguments.quiet)
    return print_outcome(folder, read_tables(folder))


def _plan(arguments: argparse.Namespace) -> int:
    from harness.spec import load_sweep
    from harness.terminal import print_plan

    sweep = load_sweep(arguments.sweep, arguments.overrides)
    results = arguments.results or Path("results") / sweep.name
    print_plan(sweep, results)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from harness.outputs import write_outputs
    from harness.terminal import print_outcome

    return print_outcome(arguments.results, write_outputs(arguments.results))


def _methods(_: argparse.Namespace) -> int:
    from harness.terminal import print_methods

    print_methods()
    return 0


def _zoo(_: argparse.Namespace) -> int:
    from harness.terminal import print_zoo

    print_zoo()
    return 0


_COMMANDS = {"run": _run, "plan": _plan, "report": _report, "methods": _methods, "zoo": _zoo}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (2 for what a user can put right)."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.version:
        from importlib.metadata import version

        print(version("ropewalk"))
        return 0
    if parsed.command is None:
        parser.print_help()
        return 2
    # transformers' own bars and advice would break the progress line.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        return _COMMANDS[parsed.command](parsed)
    except RopewalkError as error:
        print(f"ropewalk: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "\nropewalk: stopped; what was measured is kept, the same command goes on from there",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:  # `ropewalk methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"ropewalk: {where}{error.strerror or error}; what was measured is kept",
            file=sys.stderr,
        )
        return 2
