"""Where the time of a batch goes: spans of trainers and servers, under one id, in files that a browser shows.

Rooms before and after: the trainer's loop says which batch it works on, the client and the server what they do for
it; ``pserver trace`` puts the files of all processes together. Knows no gRPC and no tables.

What always holds:
    * Without a recorder a hook looks at one global and goes on. Hooks change nothing that a request carries or does.
    * A process keeps the last ``SPANS_MAX`` spans; nothing waits for a file or for another process.
    * Spans of one trace come from one batch of one trainer: the id travels as W3C's ``traceparent`` in a call's metadata.
"""

from pserver.trace.batches import numbered, span, traced
from pserver.trace.files import numbered_file, recording
from pserver.trace.recorder import Place, here, within

__all__ = ["Place", "here", "numbered", "numbered_file", "recording", "span", "traced", "within"]
