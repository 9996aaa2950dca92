"""ModelCheck accepts honest rounds and refuses each active attack, in the first round and later; each test of it can fail."""

from __future__ import annotations
