"""The command that runs a user's own script."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from pathlib import Path

import click

from shardwrite.cli.common import engine, log_option, logging_to_terminal, requeueing
from shardwrite.cli.options import requeue_option, scheduler_option
from shardwrite.cli.terminal import Grouped, echo
from shardwrite.errors import IncompleteError
from shardwrite.runs.outcome import INCOMPLETE, exit_code_of, handling_signals


@click.command(
    "exec",
    cls=Grouped,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@scheduler_option
@requeue_option
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def execute(
    address: str | None,
    n_requeues: int | None,
    log_level: str,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run a Python SCRIPT that writes arrays, with signals and exit codes.

    The script gets ARGS. The signal USR1 finishes the shards in flight and exits with 85; TERM and
    INT exit with 85 at once. Exit codes: 0 complete; 1 an error; 2 wrong usage; 75 storage trouble
    that may pass; 85 incomplete, so run the command again.
    """
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        with (
            logging_to_terminal(log_level),
            requeueing(n_requeues),
            handling_signals(),
            contextlib.ExitStack() as stack,
        ):
            if address is not None:
                stack.enter_context(engine(None, None, address))
            _run(script)
    except Exception as error:
        echo(traceback.format_exc(), err=True)
        raise SystemExit(exit_code_of(error)) from error


execute.params.append(log_option())


def _run(script: str) -> None:
    """Run a script as the main program.

    - Raises IncompleteError if the script exits with 85 itself.
    """
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code != INCOMPLETE:
            raise
        raise IncompleteError("the program says that it is incomplete", missing=[]) from ended
