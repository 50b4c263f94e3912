"""The help of every command is one that a newcomer can read."""

from __future__ import annotations

import re

import click
import dask.array as da

import shardwrite
from shardwrite.cli import main


def commands(group, parent):
    for name in group.list_commands(parent):
        found = group.get_command(parent, name)
        context = click.Context(found, info_name=name, parent=parent)
        if not found.hidden:
            yield context
        if isinstance(found, click.Group):
            yield from commands(found, context)


def all_commands():
    return list(commands(main, click.Context(main, info_name="shardwrite")))


def test_the_list_of_commands_shows_whole_sentences():
    for context in all_commands():
        short = context.command.get_short_help_str(limit=72)
        assert short.endswith("."), (context.command_path, short)
        assert not short.endswith("..."), (context.command_path, short)


def test_every_option_has_a_help_that_is_a_sentence():
    for context in all_commands():
        for option in context.command.params:
            if isinstance(option, click.Option) and not option.hidden:
                where = f"{context.command_path} {option.opts[0]}"
                assert option.help, where
                assert option.help.endswith("."), where
                assert option.help[0].isupper(), where


def test_tables_say_nothing_that_goes_without_saying(tmp_path):
    x = da.arange(64, chunks=16, dtype="u2")
    plan = str(shardwrite.plan(x, shards=32, chunks=8))
    result = str(x.to_sharded_zarr(tmp_path / "x.zarr", shards=32, chunks=8))
    again = str(x.to_sharded_zarr(tmp_path / "x.zarr", shards=32, chunks=8))
    for text in (plan, result, again):
        assert re.search(r"\b1 (graphs|files|times|tasks|threads|processes)\b", text) is None
        assert re.search(r"\b0 B(/s)?( for|$|\s)", text, re.MULTILINE) is None
    assert "outside the array" not in plan
    assert "outside the array" in str(shardwrite.plan(x, shards=48, chunks=8))
    assert "nothing was left to do" in again
