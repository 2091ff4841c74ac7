"""Pagination, rate limits and the workbook, around calls whose answers the test decides."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_core.canonical import JsonValue
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import CommandKey, GrantedCommand
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.pipeline import Pipeline
from noetl_worker.application.pipeline_run import PipelineEnd
from noetl_worker.application.rate_limits import RateLimits
from noetl_worker.application.tool_call import ToolCall

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


class Server:
    """Answers http calls as the test says, and remembers what was asked for."""

    def __init__(self, answer: Callable[[dict[str, Any], str], Outcome]) -> None:
        self._answer = answer
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def run(self, call: ToolCall) -> Outcome:
        params = call.render(call.config.get("params"))
        asked = params if isinstance(params, dict) else {}
        url = str(call.render(call.config.get("url")))
        self.asked.append((url, asked))
        return self._answer(asked, url)


def page(body: JsonValue, *, link: str = "", url: str = "http://api/items") -> Outcome:
    headers: dict[str, JsonValue] = {"link": link} if link else {}
    return Outcome(data={"status_code": 200, "headers": headers, "url": url, "data": body, "body": body})


async def run(document: str, tool: Any, **options: Any) -> PipelineEnd:
    playbook, _ = parse_playbook(HEAD + document, supported=EVERYTHING)
    command = GrantedCommand(
        key=CommandKey(execution_id=1, command_id="c"),
        tenant_id="t",
        organization_id="o",
        catalog_id="1",
        step="s",
        activation=1,
        attempt=1,
        lease_seconds=45,
        idempotency_key="k",
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    )

    async def no_sleep(seconds: float) -> None:
        return None

    pipeline = Pipeline(tool, sleep=no_sleep, chance=lambda: 0.0, **options)
    end = await pipeline(command, playbook.steps["s"], {"ctx": {}}, workbook=playbook.workbook)
    assert isinstance(end, PipelineEnd)
    return end


def paginated(paginate: str, rules: str = "[]") -> str:
    return f"""
workflow:
- step: s
  tool: {{kind: http, url: "http://api/items", spec: {{policy: {{paginate: {paginate}, rules: {rules}}}}}}}
"""


def told(end: PipelineEnd) -> tuple[Any, Any, Any]:
    assert end.outcome.error is None, end.outcome.error
    assert isinstance(end.outcome.data, dict)
    return end.outcome.data["data"], end.outcome.data["pages"], end.outcome.data["item_count"]


async def test_pages_by_number_until_one_has_no_items() -> None:
    pages: dict[int, list[JsonValue]] = {1: ["a", "b"], 2: ["c"], 3: []}
    server = Server(lambda params, url: page({"orders": pages[params["page"]]}))

    end = await run(paginated("{by: page, param: page, items: orders}"), server)

    assert told(end) == (["a", "b", "c"], 3, 3)


async def test_pages_by_offset_end_at_a_short_one() -> None:
    everything = list(range(5))
    server = Server(lambda params, url: page([*everything[params["skip"] : params["skip"] + params["n"]]]))

    end = await run(paginated("{by: offset, param: skip, size: 2, size_param: n}"), server)

    assert told(end) == (everything, 3, 5)
    assert [params["skip"] for _, params in server.asked] == [0, 2, 4]


async def test_pages_by_cursor_end_at_an_empty_one() -> None:
    bodies: dict[Any, JsonValue] = {None: {"items": [1], "next": "x"}, "x": {"items": [2], "next": ""}}
    server = Server(lambda params, url: page(bodies[params.get("after")]))

    end = await run(paginated("{by: cursor, param: after, items: items, next: next}"), server)

    assert told(end) == ([1, 2], 2, 2)


async def test_pages_by_link_follow_the_header_relative_to_the_page() -> None:
    def answer(params: dict[str, Any], url: str) -> Outcome:
        return page([2]) if "p=2" in url else page([1], link='</items?p=2>; rel="next"')

    server = Server(answer)

    end = await run(paginated("{by: next_link}"), server)

    assert told(end) == ([1, 2], 2, 2)
    assert server.asked[1][0] == "http://api/items?p=2"


async def test_stop_when_and_the_cap_end_paging() -> None:
    endless = Server(lambda params, url: page([params["p"]]))

    stopped = await run(paginated('{by: page, param: p, stop_when: "{{ output.data[0] == 2 }}"}'), endless)
    assert told(stopped) == ([1, 2], 2, 2)

    capped = await run(paginated("{by: page, param: p, max_pages: 3}"), endless)
    assert capped.outcome.error is not None
    assert capped.outcome.error.code == "PAGINATE_LIMIT"


async def test_retry_repeats_one_page_only() -> None:
    failures = [Outcome.failed(kind=ErrorKind.SERVER_ERROR, code="HTTP_503", message="busy")]

    def answer(params: dict[str, Any], url: str) -> Outcome:
        if params["p"] == 2 and failures:
            return failures.pop()
        return page([params["p"]] if params["p"] < 3 else [])

    server = Server(answer)
    rules = '[{when: "{{ output.error.retryable }}", then: {do: retry, attempts: 3}}]'

    end = await run(paginated("{by: page, param: p}", rules), server)

    assert told(end) == ([1, 2], 3, 2)
    assert [params["p"] for _, params in server.asked] == [1, 2, 2, 3]


async def test_a_page_that_is_no_list_is_an_error_that_says_so() -> None:
    end = await run(paginated("{by: page, param: p}"), Server(lambda params, url: page({"oops": 1})))

    assert end.outcome.error is not None
    assert end.outcome.error.code == "PAGINATE_ITEMS"


async def test_a_page_without_items_is_the_last_one_however_it_says_so() -> None:
    bodies: dict[int, JsonValue] = {1: {"items": [1]}, 2: {"items": None}}
    end = await run(
        paginated("{by: page, param: p, items: items}"), Server(lambda params, url: page(bodies[params["p"]]))
    )
    assert told(end) == ([1], 2, 1)

    end = await run(paginated("{by: page, param: p, items: items}"), Server(lambda params, url: page({"other": 1})))
    assert told(end) == ([], 1, 0)

    end = await run(paginated("{by: page, param: p}"), Server(lambda params, url: page(None)))
    assert told(end) == ([], 1, 0)


async def test_rules_judge_a_page_whose_items_are_no_list_and_may_have_it_asked_for_again() -> None:
    bodies: list[JsonValue] = [[1], {"oops": 1}, [2], []]
    server = Server(lambda params, url: page(bodies[len(server.asked) - 1]))
    rules = (
        """[{when: "{{ error.code == 'PAGINATE_ITEMS' and output.data.data.oops }}", then: {do: retry, attempts: 2}}]"""
    )

    end = await run(paginated("{by: page, param: p}", rules), server)

    assert told(end) == ([1, 2], 3, 2)
    assert [params["p"] for _, params in server.asked] == [1, 2, 2, 3]


async def test_rules_judge_the_cap_and_may_be_content_with_what_there_is() -> None:
    endless = Server(lambda params, url: page([params["p"]]))
    count = 'set: {ctx.n: "{{ output.data.item_count }}"}'
    rules = f"""[{{when: "{{{{ error.code == 'PAGINATE_LIMIT' }}}}", then: {{do: DO, {count}}}}}]"""
    paginate = "{by: page, param: p, max_pages: 3}"

    passed = await run(paginated(paginate, rules.replace("DO", "continue")), endless)
    assert told(passed) == ([1, 2, 3], 3, 3)
    assert isinstance(passed.outcome.data, dict)
    assert passed.outcome.data["status"] == "error"
    assert passed.variables == {"n": 3}

    asked = len(endless.asked)
    again = await run(paginated(paginate, rules.replace("DO", "retry")), endless)
    assert again.outcome.error is not None
    assert again.outcome.error.code == "PAGINATE_LIMIT"
    assert len(endless.asked) == asked + 3


async def test_break_ends_paging_with_all_items_so_far() -> None:
    rules = """[{when: "{{ output.data.data[0] == 2 }}", then: {do: break}}]"""

    end = await run(paginated("{by: page, param: p}", rules), Server(lambda params, url: page([params["p"]])))

    assert end.broke
    assert told(end) == ([1, 2], 2, 2)


async def test_an_error_that_is_let_pass_keeps_the_pages_before_it() -> None:
    refused = Outcome.failed(kind=ErrorKind.NOT_FOUND, code="HTTP_404", message="no", data={"status_code": 404})

    def answer(params: dict[str, Any], url: str) -> Outcome:
        return page([params["p"]]) if params["p"] < 3 else refused

    end = await run(paginated("{by: page, param: p}", "[{else: {then: {do: continue}}}]"), Server(answer))
    assert told(end) == ([1, 2], 2, 2)
    assert isinstance(end.outcome.data, dict)
    assert end.outcome.data["status_code"] == 404

    failed = await run(paginated("{by: page, param: p}"), Server(answer))
    assert failed.outcome.error is not None
    assert failed.outcome.error.code == "HTTP_404"


async def test_stop_when_sees_output_as_rules_do() -> None:
    server = Server(lambda params, url: page({"items": [params["p"]], "paging": {"more": params["p"] < 2}}))
    stop = "{{ not output.data.data.paging.more and output.paging.more is false and output.data.status_code == 200 }}"

    end = await run(paginated(f'{{by: page, param: p, items: items, stop_when: "{stop}"}}'), server)

    assert told(end) == ([1, 2], 2, 2)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def test_a_bucket_lets_its_burst_pass_and_then_keeps_the_rate() -> None:
    clock = Clock()
    limits = RateLimits(clock=clock, sleep=clock.sleep)
    times = []
    for _ in range(4):
        await limits.take("k", rate=2, per_seconds=1, burst=2)
        times.append(clock.now)

    assert times == [0.0, 0.0, 0.5, 1.0]


async def test_retry_after_closes_the_bucket_for_everybody_with_its_key() -> None:
    clock = Clock()
    limits = RateLimits(clock=clock, sleep=clock.sleep)
    refusal = Outcome.failed(
        kind=ErrorKind.RATE_LIMIT,
        code="HTTP_429",
        message="slow down",
        http={"status": 429, "headers": {"Retry-After": "7"}},
    )
    document = """
workflow:
- step: s
  tool: {kind: http, url: u, spec: {policy: {rate_limit: {rate: 100, key: shared}, rules: RULES}}}
""".replace("RULES", '[{when: "{{ _attempt < 2 }}", then: {do: retry, attempts: 2}}]')
    answers = [page([1]), refusal]

    await run(document, Server(lambda params, url: answers.pop()), limits=limits)

    assert clock.now == pytest.approx(7.0)


async def test_a_workbook_task_is_called_by_name_and_the_callers_input_wins() -> None:
    document = """
workbook:
- {name: double, tool: {kind: python, input: {n: 1, m: 1}, code: x}}
workflow:
- {step: s, tool: {kind: workbook, task: double, input: {n: 21}}}
"""
    calls: list[ToolCall] = []

    class Tool:
        async def run(self, call: ToolCall) -> Outcome:
            calls.append(call)
            return Outcome(data=42)

    end = await run(document, Tool())

    assert end.outcome.data == 42
    assert (calls[0].kind, calls[0].rendered_input()) == ("python", {"n": 21, "m": 1})
