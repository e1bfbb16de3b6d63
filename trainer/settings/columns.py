"""The settings of data with named columns: which of them is the label, which are dense features, which slots.

Rooms before and after: ``config`` inherits the fields and calls ``refuse_idle_columns``; ``data`` reads Parquet by them.
"""

from typing import Annotated, Final

from pydantic import Field

from pserver import Settings

COLUMNS: Final = ("label_column", "dense_columns", "slot_columns")


class ColumnSettings(Settings):
    """What the columns of Parquet files are for."""

    label_column: Annotated[
        str, Field(min_length=1, description="column of labels, 0 or 1 (format parquet)")
    ] = "label"
    dense_columns: Annotated[
        str | None,
        Field(
            description="COLUMN,... of dense features; none: all floats that nothing else names "
            "(format parquet)"
        ),
    ] = None
    slot_columns: Annotated[
        str | None,
        Field(
            description="COLUMN,... of slots, in order; none: all integers, texts and lists of them that nothing "
            "else names (format parquet)"
        ),
    ] = None


def names_of(text: str | None) -> tuple[str, ...] | None:
    """Return the columns that a setting names; None: it names none.

    >>> names_of("a, b"), names_of(None), names_of("")
    (('a', 'b'), None, ())
    """
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def refuse_idle_columns(given: set[str], data_format: str) -> None:
    """Refuse columns of files that have none.

    Raises:
        ValueError: the setting is named.
    """
    for name in COLUMNS:
        if name in given and data_format != "parquet":
            raise ValueError(
                f"{name} has no effect with format {data_format}, whose columns have their places; give format "
                "parquet, or leave it out"
            )
