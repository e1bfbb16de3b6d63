"""The hot loops: plain functions on arrays, compiled by numba, without objects or allocation."""
