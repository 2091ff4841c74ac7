"""How a paginated http call goes from page to page, and what all pages together give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urljoin

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.playbook.expressions import TemplateFailed, evaluate_condition, render
from noetl_core.playbook.model import PageBy, Paginate
from noetl_core.playbook.views import look_into

from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall

_NEXT_LINK = re.compile(r'<([^>]*)>\s*;[^,]*\brel="?next"?', re.IGNORECASE)


class PageError(Exception):
    """The body is not what `paginate` says it is."""


@dataclass(slots=True)
class Pages:
    """One paginated call: where it stands, and what it has so far."""

    paginate: Paginate
    names: Mapping[str, object]
    now: str | None
    items: list[JsonValue] = field(default_factory=list)
    count: int = 0
    item_count: int = 0
    url: str | None = None
    value: JsonValue = None
    size: int | None = None
    max_pages: int = 1000

    @classmethod
    def begin(cls, paginate: Paginate, names: Mapping[str, object], now: str | None) -> Pages:
        """Before the first page; raises `TemplateFailed`."""
        pages = cls(paginate, names, now)
        pages.size = None if paginate.size is None else pages._whole(paginate.size)
        pages.max_pages = pages._whole(paginate.max_pages)
        if paginate.by in (PageBy.OFFSET, PageBy.PAGE):
            pages.value = pages._whole(paginate.start)
        return pages

    def call(self, first: ToolCall) -> ToolCall:
        """The call of the current page."""
        config = dict(first.config)
        params = dict(_mapping(first.render(config.get("params"))))
        if self.paginate.size_param and self.size is not None:
            params[self.paginate.size_param] = self.size
        if self.url is not None:
            config["url"] = self.url
            config.pop("endpoint", None)
            params = {}  # The link says it all.
        elif self.paginate.param and self.value is not None:
            params[self.paginate.param] = self.value
        return replace(first, config={**config, "params": params})

    def take(self, outcome: Outcome) -> bool:
        """Add a page that went well; returns whether another one follows. Raises `PageError`, `TemplateFailed`."""
        result = _mapping(outcome.data)
        body = result.get("data")
        found = body if self.paginate.items is None else _at(body, self.paginate.items)
        if not isinstance(found, list):
            raise PageError(f"the items of a page are a list, not {type(found).__name__}")
        self.items.extend(found)
        self.item_count += len(found)
        self.count += 1
        if not found or (self.size is not None and len(found) < self.size):
            return False
        if self.paginate.stop_when is not False and evaluate_condition(
            self.paginate.stop_when, {**self.names, "output": {**outcome.envelope(), "data": body}}, now=self.now
        ):
            return False
        return self._advance(result, body, len(found))

    def told(self, last: Outcome) -> Outcome:
        """§5.3: the last page's fields, all items as `data` and `body`."""
        result = {**_mapping(last.data), "data": self.items, "body": self.items}
        return replace(last, data={**result, "pages": self.count, "item_count": self.item_count})

    def drain(self) -> list[JsonValue]:
        """The items so far, which are somebody else's from now on."""
        items, self.items = self.items, []
        return items

    def limit_reached(self) -> Outcome | None:
        """What happens instead of one page too many."""
        if self.count < self.max_pages:
            return None
        message = f"there are more than {self.max_pages} pages"
        return Outcome.failed(kind=ErrorKind.CLIENT_ERROR, code="PAGINATE_LIMIT", message=message)

    def _advance(self, result: JsonObject, body: JsonValue, found: int) -> bool:
        match self.paginate.by:
            case PageBy.OFFSET:
                self.value = int(str(self.value)) + (self.size or found)
                return True
            case PageBy.PAGE:
                self.value = int(str(self.value)) + 1
                return True
            case PageBy.CURSOR:
                self.value = _at(body, self.paginate.next) if self.paginate.next else None
                return bool(self.value)
            case PageBy.NEXT_LINK:
                link = _at(body, self.paginate.next) if self.paginate.next else _link_header(result)
                self.url = urljoin(str(result.get("url") or ""), str(link)) if link else None
                return self.url is not None

    def _whole(self, value: JsonValue) -> int:
        rendered = render(value, self.names, now=self.now)
        try:
            return int(rendered)  # type: ignore[arg-type]  # what is no number is told below
        except (TypeError, ValueError) as exc:
            raise TemplateFailed("this is no whole number", expression=str(value)) from exc


def _mapping(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _at(body: JsonValue, path: str) -> JsonValue:
    value: object = body
    for key in path.split("."):
        try:
            value = look_into(value, key)
        except KeyError:
            return None
    return value  # type: ignore[return-value]  # below JSON there is JSON


def _link_header(result: JsonObject) -> str | None:
    headers = _mapping(result.get("headers"))
    link = next((value for name, value in headers.items() if name.lower() == "link"), None)
    found = _NEXT_LINK.search(str(link)) if link else None
    return found.group(1) if found else None
