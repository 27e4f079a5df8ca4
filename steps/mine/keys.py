"""Integer keys: what the joins of mining compare instead of strings, and the source of its deterministic randomness.

A key is 63 bits of a digest of an id, so it depends on nothing but the id: the same in every run, on every engine and
whatever else the log holds.
"""

from hashlib import blake2b

import ibis
import ibis.expr.types as ir

_PRIME = 2**31 - 1  # products of two remainders stay below 2**62: no engine overflows


def key(text: str) -> int:
    """63-bit key of a text, not negative."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def mixed(seed: int, first: ir.IntegerColumn, second: ir.IntegerColumn) -> ir.IntegerColumn:
    """A pseudo-random whole number in [0, 2**31 - 1) for each pair of keys, equal on every engine."""
    start = key(f"mixed {seed}")
    factor_1, factor_2, factor_3 = (start // 2**shift % _PRIME for shift in (0, 16, 32))
    linear = (
        (first % _PRIME) * ibis.literal(factor_1, "int64") + (second % _PRIME) * ibis.literal(factor_2, "int64")
    ) % _PRIME
    return ((linear * linear) % _PRIME * ibis.literal(factor_3, "int64") + linear) % _PRIME
