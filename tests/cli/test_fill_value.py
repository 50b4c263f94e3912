"""The fill value of the command line is read as a value of the array's dtype."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from shardwrite import SpecError
from shardwrite.cli import main
from shardwrite.cli.values import fill_of

KEPT = [
    ("i8", "9007199254740993", 9007199254740993),
    ("i8", "-9223372036854775808", -(2**63)),
    ("u8", "18446744073709551615", 2**64 - 1),
    ("u8", "0xffffffffffffffff", 2**64 - 1),
    ("i2", "-0x10", -16),
    ("u8", "1e3", 1000),
    ("i4", "5.0", 5),
    ("?", "true", True),
    ("?", "False", False),
    ("?", "0", False),
    ("f8", "-0.0", -0.0),
    ("f8", "nan", "NaN"),
    ("f4", "-inf", "-Infinity"),
    ("f4", "0x7fc00001", "0x7fc00001"),
    ("f8", "0xfff8000000000000", "0xfff8000000000000"),
    ("f2", "0x7e01", "0x7e01"),
    (">f4", "0x7fc00001", "0x7fc00001"),
    ("c16", "1+2j", [1.0, 2.0]),
    ("c16", "1 - 2j", [1.0, -2.0]),
    ("c8", '["NaN", -1]', ["NaN", -1.0]),
    ("c8", '["0x7fc00001", 0]', ["0x7fc00001", "0x00000000"]),
    ("M8[s]", "2020-01-01", 1577836800),
    ("M8[ms]", "2020-01-01T00:00:00.5", 1577836800500),
    ("M8[D]", "5", 5),
    ("M8[D]", "nat", -(2**63)),
    ("m8[s]", "-7", -7),
    ("U3", "5", "5"),
    ("U5", "true", "true"),
    ("U3", " a ", " a "),
    ("S3", "1.5", "MS41"),
]
REFUSED = [
    ("i4", "1.5"),
    ("i4", "nan"),
    ("i4", "true"),
    ("i4", ""),
    ("i4", "1e400000000"),
    ("u1", "256"),
    ("u1", "-1"),
    ("?", "2"),
    ("?", "yes"),
    ("f8", "1e400"),
    ("f4", "1e39"),
    ("f4", "0x7ff8000000000000"),
    ("M8[ns]", "9999-01-01"),
    ("f8", "true"),
    ("c8", "[1]"),
    ("c8", "[1, 2, 3]"),
    ("c8", "one"),
    ("M8[D]", "2020-01-01T12:00"),
    ("M8[s]", "yesterday"),
    ("M8[s]", ""),
    ("M8[M]", "2020-01-31"),
    ("m8[s]", "2020-01-01"),
    ("U3", "abcd"),
]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::Warning")
def test_the_document_has_the_value_of_the_dtype(tmp_path):
    for n, (dtype, text, wanted) in enumerate(KEPT):
        ended = written(tmp_path / str(n), dtype, text)
        assert ended.exit_code == 0, (dtype, text, ended.output)
        found = json.loads((tmp_path / f"{n}.zarr/zarr.json").read_text())["fill_value"]
        assert json.dumps(found) == json.dumps(wanted), (dtype, text)


@pytest.mark.filterwarnings("ignore::Warning")
def test_what_is_no_value_of_the_dtype_is_refused(tmp_path):
    for n, (dtype, text) in enumerate(REFUSED):
        ended = written(tmp_path / str(n), dtype, text)
        assert ended.exit_code == 2, (dtype, text, ended.output)
        assert "--fill-value" in ended.output
        assert not (tmp_path / f"{n}.zarr").exists()


def written(path, dtype, text):
    np.save(path.with_suffix(".npy"), np.zeros(4, dtype))
    out = [f"{path}.npy", f"{path}.zarr", "--shards", "4", "--chunks", "2"]
    return CliRunner().invoke(main, ["write", *out, "--fill-value", text])


def test_the_message_says_what_to_give():
    with pytest.raises(SpecError, match=r"fill_value='yes'.*give true or false"):
        fill_of("yes", np.dtype(bool))
