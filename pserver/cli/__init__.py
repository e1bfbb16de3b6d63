"""The command ``pserver``: one file a verb; ``main`` is the way in."""
