"""A process's number from the name of its machine, as a Kubernetes StatefulSet gives it to pods.

Rooms before and after: ``config`` takes a shard's index from here when it is ``auto``.

What always holds: only the first part of the name counts, and only digits behind its last dash;
a name without them is an error, never 0.
"""

import re
import socket

_ORDINAL = re.compile(r".+-(\d{1,9})")


def ordinal_of(host_name: str) -> int:
    """Return the number at the end of a host name.

    Args:
        host_name: such as ``pserver-3``; a domain behind it is let pass.

    Raises:
        ValueError: the name does not end in a dash and a number.

    >>> ordinal_of("pserver-3"), ordinal_of("ads-pserver-12.pserver.training.svc")
    (3, 12)
    """
    found = _ORDINAL.fullmatch(host_name.split(".")[0])
    if found is None:
        raise ValueError(
            f"auto takes the number at the end of the host name, such as 3 of pserver-3, and this "
            f"host is {host_name!r}; give the number itself, or run as a pod of a StatefulSet"
        )
    return int(found[1])


def ordinal_if_auto(value: object) -> object:
    """Return this host's number for ``auto``, and anything else as it is.

    Raises:
        ValueError: ``auto``, and the host's name does not end in a dash and a number.
    """
    return ordinal_of(socket.gethostname()) if value == "auto" else value
