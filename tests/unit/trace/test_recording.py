"""What ``trace.recording`` promises: a whole file of the last spans, soon after them and at the end."""

WAIT_S = 30.0
