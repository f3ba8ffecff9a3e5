"""Parsed JSON as dataclasses, where the text may hold integers of any length."""

from dataclasses import dataclass

import pytest

from coordgen_rs.errors.json_text import FieldError, parse, parse_json


@dataclass(frozen=True)
class _Figures:
    theta: float | None = None
    size: int | None = None
    ends: object = None


@pytest.mark.parametrize("field", ["theta", "size"])
@pytest.mark.parametrize(
    "number", ["1" + "0" * 400, "-9223372036854775809", "18446744073709551616"]
)
def test_integers_beyond_64_bits_are_refused_where_a_number_is_expected(field, number):
    document = parse_json(f'{{"{field}": {number}}}', "a file", long_integers=True)
    with pytest.raises(FieldError, match=f"figures.{field} is .*, beyond 64 bits"):
        parse(_Figures, document, "figures")


def test_numbers_of_64_bits_and_what_takes_anything_are_read():
    text = (
        '{"theta": 18446744073709551615, "size": -9223372036854775808, "ends": 1' + "0" * 400 + "}"
    )
    found = parse(_Figures, parse_json(text, "a file", long_integers=True), "figures")
    assert found == _Figures(2.0**64, -(2**63), 10**400)
