"""The help of every command fits the terminal, and leaves nothing out."""

from __future__ import annotations

import re

import click
import pytest

from shardwrite.cli import main
from shardwrite.cli.terminal import Grouped

WIDTHS = [60, 80, 120]
# Options with a value that have no default: without them, something is not done or not known.
OFF = {
    *("--against", "--append", "--attributes", "--cluster", "--dataset", "--dtype", "--exclude"),
    *("--grid", "--html", "--include", "--jobs", "--manifest", "--name", "--names", "--part"),
    *("--parts", "--png", "--program", "--region", "--requeue", "--resubmit", "--run-dir"),
    *("--sbatch", "--scheduler", "--setup", "--shape", "--source", "--while-growing", "--workers"),
}


def contexts():
    """All commands, each with a context as the program makes it."""
    root = click.Context(main, info_name="shardwrite", **main.context_settings)
    waiting = [root]
    while waiting:
        context = waiting.pop()
        yield context
        command = context.command
        if isinstance(command, click.Group):
            found = [(name, command.get_command(context, name)) for name in command.commands]
            waiting += [click.Context(one, parent=context, info_name=name) for name, one in found]


def options(context):
    return [
        one
        for one in context.command.get_params(context)
        if isinstance(one, click.Option) and not one.hidden
    ]


def sections(told):
    """Titles of the sections of a help, and their text."""
    found = re.split(r"^(\S.*):$", told, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


@pytest.mark.parametrize("width", WIDTHS)
def test_help_is_wrapped_at_the_width_of_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    longest = 0
    for context in contexts():
        lengths = [len(line) for line in context.get_help().splitlines()]
        assert max(lengths) <= width, context.command_path
        longest = max(longest, *lengths)
    assert longest > width * 0.9, "a wide terminal is used"


@pytest.mark.parametrize("width", WIDTHS)
def test_lists_of_commands_hold_whole_sentences(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    for context in contexts():
        if not isinstance(context.command, click.Group):
            continue
        told = " ".join(context.get_help().split())
        assert "..." not in told.split(" Options: ")[1]
        for name in context.command.commands:
            command = context.command.get_command(context, name)
            sentence = command.help.split("\n\n")[0].replace("\n", " ")
            assert (f" {name} {sentence}" in told) is not command.hidden, name


def test_internal_commands_are_hidden():
    hidden = {context.command.name for context in contexts() if context.command.hidden}
    assert hidden == {"run-directory", "scheduler", "worker"}


@pytest.mark.parametrize("width", WIDTHS)
def test_options_stand_in_groups_once_each(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    for context in contexts():
        told, given = context.get_help(), options(context)
        for option in given:
            row = rf"^  (-\S+, )*{re.escape(option.opts[-1])}\b(?!-)"
            shown = "".join(sections(told).values())
            assert len(re.findall(row, shown, re.MULTILINE)) == 1, (context.command_path, option)
        if isinstance(context.command, click.Group):
            continue
        assert isinstance(context.command, Grouped), context.command_path
        titles = sections(told)
        if len(given) <= 8:
            assert list(titles) == ["Options"], context.command_path
        else:
            assert len(titles) >= 3, context.command_path
            assert titles.get("Options", "").count("\n  --") <= 6, context.command_path


@pytest.mark.parametrize("width", WIDTHS)
def test_every_default_is_stated(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    n_stated = 0
    for context in contexts():
        for option in options(context):
            default = option.to_info_dict()["default"]
            if default in (None, False, (), "") or option.is_eager:
                continue
            _, told = option.get_help_record(context)
            assert f"default: {default}" in " ".join(told.split()), (context.command_path, option)
            n_stated += 1
    assert n_stated > 60


def test_what_holds_without_an_option_is_stated():
    named = set()
    for context in contexts():
        for option in options(context):
            told = " ".join(option.get_help_record(context)[1].split())
            assert told.count("efault:") <= 1, (context.command_path, option)
            if option.is_flag or option.required or "efault:" in told:
                continue
            assert option.opts[-1] in OFF, (context.command_path, option)
            named.add(option.opts[-1])
            if option.multiple:
                assert "May be repeated." in told, (context.command_path, option)
    assert named == OFF
