"""Read how calls are made: page by page, not too often, chunk by chunk."""

from __future__ import annotations

from noetl_core.playbook.fields import Fields
from noetl_core.playbook.task_model import PageBy, Paginate, RateLimit, Stream, ToolKind

_NEEDED = {
    PageBy.NEXT_LINK: (),
    PageBy.CURSOR: ("param", "next"),
    PageBy.OFFSET: ("param", "size"),
    PageBy.PAGE: ("param",),
}
_STREAMING = frozenset({ToolKind.POSTGRES, ToolKind.DUCKDB, ToolKind.SPARK, ToolKind.SNOWFLAKE, ToolKind.DUCKLAKE})


def read_paginate(policy: Fields, kind: str) -> Paginate | None:
    """How an http call goes on to the next page."""
    fields = policy.below("paginate")
    if fields is None:
        return None
    if kind != ToolKind.HTTP:
        policy.invalid("paginate", f"is for http tools, not for {kind}", code="tool_config")
    word = fields.text("by")
    if word is None:
        return None
    by = PageBy(word)
    for key in _NEEDED[by]:
        if key not in fields.written:
            fields.missing(key, why=f" to go on by {by}")
    start, max_pages = fields.count("start"), fields.count("max_pages")
    return Paginate(
        by=by,
        param=fields.text("param"),
        items=fields.text("items"),
        next=fields.text("next"),
        start=(1 if by is PageBy.PAGE else 0) if start is None else start,
        size=fields.count("size"),
        size_param=fields.text("size_param"),
        stop_when=fields.condition("stop_when") if fields.has("stop_when") else False,
        max_pages=1000 if max_pages is None else max_pages,
    )


def read_rate_limit(policy: Fields) -> RateLimit | None:
    """How often calls may be made."""
    fields = policy.below("rate_limit")
    rate = None if fields is None else fields.amount("rate")
    if fields is None or rate is None:
        return None
    per_seconds = fields.amount("per_seconds")
    return RateLimit(
        rate=rate,
        per_seconds=1.0 if per_seconds is None else per_seconds,
        burst=fields.amount("burst"),
        key=fields.text("key"),
    )


def read_stream(spec: Fields, kind: str, *, is_paginated: bool) -> Stream | None:
    """Whether rows are delivered while the call runs."""
    fields = spec.below("stream")
    if fields is None:
        return None
    if kind not in _STREAMING and not (kind == ToolKind.HTTP and is_paginated):
        what = "http tools without `paginate`" if kind == ToolKind.HTTP else f"{kind} tools"
        spec.invalid("stream", f"is not for {what}", code="tool_config")
    return Stream(chunk_rows=fields.count("chunk_rows") or 1000)
