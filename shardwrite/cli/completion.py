"""The command that prints a script for completion, and what is completed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from shardwrite.cli.terminal import Grouped, emit

_PROGRAM, _VARIABLE = "shardwrite", "_SHARDWRITE_COMPLETE"
# A shell whose settings have not started completion has no function to register ours with.
_ZSH_BEGINS = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }"
Items = list[CompletionItem]


@click.command(cls=Grouped)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that lets a shell complete commands and paths.

    Options and their choices are completed as well.

    For bash: eval "$(shardwrite completion bash)" in ~/.bashrc; for zsh the same with zsh in
    ~/.zshrc; for fish: shardwrite completion fish > ~/.config/fish/completions/shardwrite.fish.
    """
    found = get_completion_class(shell)
    assert found is not None, "click has all of the choices"
    script = found(context.find_root().command, {}, _PROGRAM, _VARIABLE).source()
    if shell == "zsh":
        first, _, rest = script.partition("\n")  # which tells zsh what a file of functions is for
        script = f"{first}\n{_ZSH_BEGINS}\n{rest}"
    emit(script)


def files(_context: click.Context, _option: click.Parameter, incomplete: str) -> Items:
    """Have the shell complete the path of a file or directory."""
    return [CompletionItem(incomplete, type="file")]


def directories(_context: click.Context, _option: click.Parameter, incomplete: str) -> Items:
    """Have the shell complete the path of a directory."""
    return [CompletionItem(incomplete, type="dir")]


def one_of(*words: str) -> Callable[[click.Context, click.Parameter, str], Any]:
    """Complete one of some words, where others can be given too."""

    def complete(_context: click.Context, _option: click.Parameter, incomplete: str) -> Items:
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]

    return complete


def formats(_context: click.Context, _option: click.Parameter, incomplete: str) -> Items:
    """Complete the name of a format of sources."""
    from shardwrite.sources.registry import FORMATS

    return [CompletionItem(name) for name in FORMATS if name.startswith(incomplete)]
