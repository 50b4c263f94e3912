"""The note on sharding: added once, removed wholly, and nothing else of the attributes changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwrite import SpecError
from shardwrite.convert.trees import NOTE, with_note, without_note

TEXTS = st.text(max_size=9) | st.just("a\nb\n") | st.just("")
ATTRIBUTES = st.fixed_dictionaries(
    {"x": st.integers()}, optional={"notes": TEXTS | st.lists(TEXTS)}
)


@pytest.mark.long
@given(ATTRIBUTES)
def test_there_and_back(attributes):
    there = with_note(attributes)
    assert NOTE in there["notes"]
    assert with_note(there) == there
    assert without_note(there) == attributes
    assert without_note(attributes) == attributes


@pytest.mark.parametrize("notes", [None, 3, {"a": 1}, ["a", 2]])
@pytest.mark.parametrize("change", [with_note, without_note])
def test_other_values_are_refused(notes, change):
    with pytest.raises(SpecError, match="no text and no list of texts") as caught:
        change({"notes": notes})
    assert caught.value.field == "notes"
