"""What a run's ``model`` may be called: a built-in name, or where a user's own class is.

Rooms before and after: ``config`` checks the text without loading anything; ``model`` makes what it names.
"""

import re
from typing import Final

from pserver import nearest

BUILT_IN: Final = ("lr", "fm", "wide_deep", "deepfm")
"""Names of ``model.MODELS``, which loads torch."""

_OWN = re.compile(r"(?P<place>[^:]+(?::[\\/][^:]*)?):(?P<name>[A-Za-z_]\w*)")


def checked_model(text: str) -> str:
    """Return the name of a built-in model, or of one's own.

    Raises:
        ValueError: it is neither.

    >>> checked_model("deepfm"), checked_model("nets/mine.py:Net")
    ('deepfm', 'nets/mine.py:Net')
    """
    if text not in BUILT_IN and own_place(text) is None:
        hint = nearest(text, BUILT_IN)
        raise ValueError(f"unknown value {text!r}; {hint}, or FILE.py:CLASS or MODULE:CLASS")
    return text


def own_place(text: str) -> tuple[str, str] | None:
    """Return the file or module of a user's model, and its class; None if the text names none.

    >>> own_place("nets.mine:Net"), own_place("deepfm")
    (('nets.mine', 'Net'), None)
    """
    match = _OWN.fullmatch(text)
    return None if match is None else (match["place"], match["name"])
