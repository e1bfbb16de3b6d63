"""The settings of ``trainer run`` beside ``config``: groups of them, other systems' names, where values came from."""
