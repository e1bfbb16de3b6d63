"""Starts all processes of a job: on this machine, on several by torchrun, on Ray."""
