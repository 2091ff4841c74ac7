"""Arrays of numbers as one text, where a statement takes `$1::text::bigint[]`.

The driver asks of each array and of each of its elements whether it is a sequence, by abstract classes: of sixteen
shards that is more than everything else that a statement costs. PostgreSQL reads the text once, if the cast stands in
a sub-select of its own.
"""

from collections.abc import Iterable


def numbers(values: Iterable[int]) -> str:
    """As PostgreSQL writes an array."""
    return f"{{{','.join(map(str, values))}}}"
