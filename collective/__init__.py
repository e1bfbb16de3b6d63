"""Dense parameters between trainers: ring AllReduce and pipeline stages will live here.

Nothing is here yet. Rooms before and after: ``trainer`` will call it; it knows no ``pserver``.
"""

__all__: list[str] = []
