"""A user's own script, run as the program."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path

import click

from shardwrite.outcome import exit_code_of, handling_signals

__all__ = ["execute"]


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def execute(script: str, args: tuple[str, ...]) -> None:
    """Run a Python SCRIPT that writes arrays, with its ARGS, so that signals drain it and its exit code tells the outcome.

    USR1 begins no new shard, finishes those in flight and exits with 85; TERM and INT exit with 85 at once. 85 says: incomplete,
    run me again. 0 is complete, 1 an error, 2 usage, 75 storage trouble that may pass.
    """
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with handling_signals():
        try:
            runpy.run_path(script, run_name="__main__")
        except Exception as error:
            traceback.print_exc()
            raise SystemExit(exit_code_of(error)) from error
