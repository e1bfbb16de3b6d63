"""What a folder says of a server's place comes back, or is refused."""

from pathlib import Path

import pytest

from pserver.errors import JournalError
from pserver.journal.place import Place, read_place, write_place


def test_place_comes_back_when_it_was_written(tmp_path: Path) -> None:
    """Every field is read as it was written; without a file it is a first server's."""
    assert read_place(tmp_path) == Place()
    place = Place(term=3, newer=4, followed_by=5, role="promoted", name=77)

    write_place(tmp_path, place)

    assert read_place(tmp_path) == place


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"term": 1, "turn": 2}'])
def test_damage_is_refused_when_it_is_read(tmp_path: Path, text: str) -> None:
    """Whether the place was taken is not guessed."""
    (tmp_path / "PLACE.json").write_text(text)

    with pytest.raises(JournalError, match=r"PLACE\.json: cannot be read"):
        read_place(tmp_path)
