"""Benchmarks: one file a layer, so that a lost factor is found by subtraction.

``python -m bench kernel|table|wire|rpc|train|load``. All of them use the standard workload, print
the ceiling beside each number and give ratios within one run: on a shared machine an absolute
figure alone means nothing.
"""
