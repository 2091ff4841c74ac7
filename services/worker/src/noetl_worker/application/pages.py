"""How a paginated http call goes from page to page, and what all pages together give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urljoin

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.playbook.expressions import TemplateFailed, evaluate_condition, render
from noetl_core.playbook.model import PageBy, Paginate
from noetl_core.playbook.views import CallView, look_into

from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall

_NEXT_LINK = re.compile(r'<([^>]*)>\s*;[^,]*\brel="?next"?', re.IGNORECASE)


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

    def check(self, outcome: Outcome) -> Outcome:
        """The page as its rules see it: one whose items are no list is an error, and keeps the response."""
        if outcome.error is not None or isinstance(self._found(outcome), list):
            return outcome
        message = f"the items of a page are a list, not {type(self._found(outcome)).__name__}"
        failed = Outcome.failed(kind=ErrorKind.SCHEMA, code="PAGINATE_ITEMS", message=message, data=outcome.data)
        return replace(failed, http=outcome.http, meta=outcome.meta)

    def take(self, outcome: Outcome) -> bool:
        """Add a page that went well; returns whether another one follows. Raises `TemplateFailed`."""
        result = _mapping(outcome.data)
        found = self.add(outcome)
        if not found or (self.size is not None and found < self.size):
            return False
        page = CallView(envelope=outcome.envelope(), result=outcome.data)
        if self.paginate.stop_when is not False and evaluate_condition(
            self.paginate.stop_when, {**self.names, "output": page}, now=self.now
        ):
            return False
        return self._advance(result, result.get("data"), found)

    def add(self, outcome: Outcome) -> int:
        """Add the items of a page that went well; returns how many there were."""
        found = self._found(outcome)
        items = found if isinstance(found, list) else []
        self.items.extend(items)
        self.item_count += len(items)
        self.count += 1
        return len(items)

    def _found(self, outcome: Outcome) -> JsonValue:
        """The items of a page; null, or a path that leads nowhere, is no items."""
        body = _mapping(outcome.data).get("data")
        found = body if self.paginate.items is None else _at(body, self.paginate.items)
        return [] if found is None else found

    def told(self, last: Outcome) -> Outcome:
        """§5.3: the last page's fields, all items as `data` and `body`."""
        result = {**_mapping(last.data), "data": self.items, "body": self.items}
        return replace(last, data={**result, "pages": self.count, "item_count": self.item_count})

    def drain(self) -> list[JsonValue]:
        """The items so far, which are somebody else's from now on."""
        items, self.items = self.items, []
        return items

    def limit_reached(self, last: Outcome) -> Outcome | None:
        """What happens instead of one page too many; a rule may be content with what there is."""
        if self.count < self.max_pages:
            return None
        message = f"there are more than {self.max_pages} pages"
        over = Outcome.failed(kind=ErrorKind.CLIENT_ERROR, code="PAGINATE_LIMIT", message=message)
        return replace(over, data=self.told(last).data, http=last.http, meta=last.meta)

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
