"""Ratios against peers, each from one interleaved run: ``make bench``."""
