"""Attacks on tokens: decoding them to patches, and undoing shuffles of them."""
