"""A plan for people: a table in the terminal, a table and a picture of the grid in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwrite.plan.model import Plan

__all__ = ["plan_html", "plan_text"]


def plan_text(plan: Plan) -> str:
    """TODO replaced below."""
    return "\n".join(f"{k}: {v}" for k, v in plan.to_dict().items())


def plan_html(plan: Plan) -> str:
    """TODO replaced below."""
    return "<pre>" + plan_text(plan) + "</pre>"
