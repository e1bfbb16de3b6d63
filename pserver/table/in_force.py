"""What a spec makes of its rows over time, in words: shown where tables are made and listed.

Rooms before and after: ``server.lifecycle`` logs it when a table is made; ``pserver ls`` shows it.
"""

from pserver.spec import TableSpec
from pserver.table.accessor import make_accessor

NOTHING = "nothing"


def in_force(spec: TableSpec) -> dict[str, str]:
    """Return what is in force of a spec that is spelled out, by the name of the setting.

    >>> in_force(TableSpec(name="t", dim=1, ttl_days=30, evict="lru:rows=1000"))
    {'shrink': 'rows not written for over 30 days', 'evict': 'lru:rows=1000', 'on_nan': 'reject'}
    """
    return {"shrink": _shrink(spec), "evict": spec.evict, "on_nan": spec.on_nan}


def _shrink(spec: TableSpec) -> str:
    """Return which rows a daily shrink removes."""
    accessor = make_accessor(spec.accessor)
    if accessor.is_ctr:
        return (
            f"score under {accessor.number('delete_threshold'):g} or unseen for over "
            f"{accessor.number('delete_after_unseen_days'):.0f} days, after show and click * "
            f"{accessor.number('show_click_decay_rate'):g}"
        )
    return f"rows not written for over {spec.ttl_days} days" if spec.ttl_days else NOTHING
