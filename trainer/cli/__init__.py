"""The command ``trainer``: one file a verb; ``main`` is the way in."""
