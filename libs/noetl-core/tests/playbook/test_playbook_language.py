"""The whole language as the runtime sees it."""

from pathlib import Path

import pytest
from noetl_core.playbook.model import (
    Action,
    AdmitRule,
    Arc,
    ArcEvent,
    Assignment,
    Cursor,
    Do,
    Engine,
    FailureBudget,
    FrameFailure,
    FramePolicy,
    FrameProcess,
    KeychainEntry,
    KeychainScope,
    Loop,
    LoopMode,
    NoMatch,
    Output,
    OutputScope,
    PageBy,
    Paginate,
    Playbook,
    Profile,
    RateLimit,
    Reduce,
    Rule,
    Selected,
    SetScope,
    Step,
    Stream,
    Task,
    TaskLoop,
    Tool,
    ToolKind,
    WorkbookTask,
)
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test}\n"
EXAMPLES = sorted((Path(__file__).parent / "examples").glob("*.yaml"))


def read(document: str) -> Playbook:
    playbook, warnings = parse_playbook(HEAD + document, supported=EVERYTHING)
    assert warnings == ()
    return playbook


def read_step(step: str) -> Step:
    return read(f"workflow:\n- {step}\n").steps["a"]


def read_tool(tool: str) -> Tool:
    return read_step(f"{{step: a, tool: {tool}}}").tool


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_of_the_specification_is_read_without_a_warning(path: Path) -> None:
    _, warnings = parse_playbook(path.read_text(), supported=EVERYTHING)

    assert warnings == ()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 6


def test_the_executor_the_keychain_and_the_workbook_are_read() -> None:
    playbook = read(
        """
executor: {profile: distributed, spec: {timeout: 60}}
keychain:
- {name: api, kind: oauth2, scope: global, auto_renew: true, endpoint: "{{ url }}", data: {grant_type: x}}
- {name: fixed, type: static, map: {a: b}}
workbook:
- {name: double, desc: twice, tool: {kind: python, input: {x: 1}, code: result = 2 * x}}
workflow:
- {step: a, tool: {kind: workbook, name: double, input: {x: 2}}}
"""
    )

    assert (playbook.profile, playbook.timeout_seconds) == (Profile.DISTRIBUTED, 60.0)
    assert playbook.keychain == {
        "api": KeychainEntry(
            name="api",
            kind="oauth2",
            scope=KeychainScope.GLOBAL,
            auto_renew=True,
            config={"endpoint": "{{ url }}", "data": {"grant_type": "x"}},
        ),
        "fixed": KeychainEntry(name="fixed", kind="static", config={"map": {"a": "b"}}),
    }
    double = Tool(kind=ToolKind.PYTHON, input={"x": 1}, config={"code": "result = 2 * x"})
    assert playbook.workbook == {"double": WorkbookTask(name="double", desc="twice", tool=double)}
    assert playbook.steps["a"].tasks == (
        Task(label="a_task", tool=Tool(kind=ToolKind.WORKBOOK, input={"x": 2}, config={"task": "double"})),
    )


def test_a_single_tool_is_a_pipeline_of_one() -> None:
    step = read_step("{step: a, tool: {kind: noop}}")

    assert not step.is_pipeline
    assert step.tasks == (Task(label="a_task", tool=step.tool),)
    assert read_step("{step: a, tool: {kind: noop, name: b}}").tasks[0].label == "b"
    assert Step(name="x", tool=Tool(kind="noop")).tasks[0].label == "x_task"


def test_a_pipeline_has_its_tasks_in_order_with_their_labels() -> None:
    step = read_step(
        "{step: a, input: {x: 1, y: 1}, tool: [{kind: noop}, {name: n, kind: noop, input: {y: 2}}, {l: {kind: noop}}]}"
    )

    assert step.is_pipeline
    assert [task.label for task in step.tasks] == ["task_0", "n", "l"]
    assert step.tool == step.tasks[0].tool
    assert step.merged_input(step.tasks[1]) == {"x": 1, "y": 2}
    assert step.merged_input() == {"x": 1, "y": 1}


def test_what_all_tools_have_in_common_is_read() -> None:
    tool = read_step(
        """step: a
  tool:
    kind: http
    url: "{{ u }}"
    auth: {type: bearer, key: k}
    set: {x: "{{ output.a }}", ctx.y.z: 1, iter: {i: 2, j.k: 3}, step.s: 4}
    output: {select: [rows, {path: a.b, as: c}], store: {kind: disk}, inline_max_bytes: 10, scope: step}
    spec:
      timeout: 3
      stream: {chunk_rows: 5}
      policy:
        paginate: {by: cursor, param: after, next: meta.next, items: data, stop_when: "{{ output.last }}"}
        rate_limit: {rate: 20, per_seconds: 2, burst: 5, key: "{{ host }}"}
        rules:
        - when: "{{ output.error.retryable }}"
          then: {do: retry, attempts: 5, delay: 0.5, backoff: exponential}
        - {when: output.http.status == 404, then: {do: continue, set: {x: 1, ctx.gone: true}}}
        - else: {then: {do: fail}}
"""
    ).tool

    assert tool == Tool(
        kind=ToolKind.HTTP,
        config={"url": "{{ u }}"},
        timeout_seconds=3.0,
        auth={"type": "bearer", "key": "k"},
        set=(
            Assignment(scope=SetScope.STEP, path=("x",), value="{{ output.a }}"),
            Assignment(scope=SetScope.CTX, path=("y", "z"), value=1),
            Assignment(scope=SetScope.ITER, path=("i",), value=2),
            Assignment(scope=SetScope.ITER, path=("j", "k"), value=3),
            Assignment(scope=SetScope.STEP, path=("s",), value=4),
        ),
        output=Output(
            select=(Selected(path="rows"), Selected(path="a.b", name="c")),
            store="disk",
            inline_max_bytes=10,
            scope=OutputScope.STEP,
        ),
        stream=Stream(chunk_rows=5),
        paginate=Paginate(
            by=PageBy.CURSOR, param="after", next="meta.next", items="data", stop_when="{{ output.last }}"
        ),
        rate_limit=RateLimit(rate=20.0, per_seconds=2.0, burst=5.0, key="{{ host }}"),
        rules=(
            Rule(
                when="{{ output.error.retryable }}",
                then=Action(do=Do.RETRY, attempts=5, delay_seconds=0.5, backoff="exponential"),
            ),
            Rule(
                when="output.http.status == 404",
                then=Action(
                    do=Do.CONTINUE,
                    set=(
                        Assignment(scope=SetScope.CTX, path=("x",), value=1),
                        Assignment(scope=SetScope.CTX, path=("gone",), value=True),
                    ),
                ),
            ),
            Rule(then=Action(do=Do.FAIL)),
        ),
    )


@pytest.mark.parametrize(
    ("rule", "action"),
    [
        ("{do: retry}", Action(do=Do.RETRY, attempts=3, delay_seconds=0.0)),
        ("{do: retry, backoff: linear}", Action(do=Do.RETRY, delay_seconds=1.0, backoff="linear")),
        ("{do: retry, backoff: fixed, delay: 0}", Action(do=Do.RETRY, delay_seconds=0.0, backoff="fixed")),
        ("{do: retry, delay: 2}", Action(do=Do.RETRY, delay_seconds=2.0)),
        ("{do: jump, to: first}", Action(do=Do.JUMP, to="first")),
        ("{do: jump, to: previous}", Action(do=Do.JUMP, to="first")),
        ("{do: break}", Action(do=Do.BREAK)),
    ],
)
def test_an_action_has_its_defaults_and_knows_where_it_jumps(rule: str, action: Action) -> None:
    step = read_step(
        f"{{step: a, tool: [{{name: first, kind: noop}}, "
        f"{{kind: noop, spec: {{policy: {{rules: [{{when: x, then: {rule}}}]}}}}}}]}}"
    )

    assert step.tasks[1].tool.rules == (Rule(when="x", then=action),)


@pytest.mark.parametrize(
    ("paginate", "start"),
    [
        ("{by: page, param: p}", 1),
        ("{by: offset, param: p, size: 10}", 0),
        ("{by: offset, param: p, size: '{{ n }}', start: 5}", 5),
        ("{by: next_link}", 0),
    ],
)
def test_pages_are_counted_from_one_and_offsets_from_zero(paginate: str, start: int) -> None:
    tool = read_tool(f"{{kind: http, url: x, spec: {{policy: {{paginate: {paginate}}}}}}}")

    assert tool.paginate is not None
    assert (tool.paginate.start, tool.paginate.max_pages, tool.paginate.stop_when) == (start, 1000, False)


def test_a_task_may_have_a_loop_of_its_own() -> None:
    step = read_step(
        "{step: a, tool: [{kind: noop, loop: {in: '{{ xs }}', iterator: x, spec: {mode: parallel}}}, "
        "{kind: noop, loop: {in: [1], spec: {max_in_flight: 4}}}]}"
    )

    assert step.tasks[0].loop == TaskLoop(items="{{ xs }}", iterator="x", mode=LoopMode.PARALLEL, max_in_flight=8)
    assert step.tasks[1].loop == TaskLoop(items=[1])


def test_what_a_step_has_besides_its_tools_is_read() -> None:
    step = read_step(
        """step: a
  tool: {kind: postgres, auth: db, command: SELECT 1, spec: {stream: {}}}
  set: {x: "{{ output.data.n }}", step.y: 1}
  output: {scope: permanent}
  spec:
    timeout: 90
    policy:
      admit:
        rules:
        - {when: "{{ ready }}", then: {allow: true}}
        - else: {then: {allow: false}}
  next:
    spec: {on_no_match: quiet}
    arcs:
    - {step: b, on: call.partial, set: {ctx.seen: "{{ output.data }}"}}
- {step: b, tool: {kind: noop}}
"""
    )

    assert step.set == (
        Assignment(scope=SetScope.CTX, path=("x",), value="{{ output.data.n }}"),
        Assignment(scope=SetScope.STEP, path=("y",), value=1),
    )
    assert step.output == Output(scope=OutputScope.PERMANENT)
    assert step.timeout_seconds == 90.0
    assert step.admit == (AdmitRule(when="{{ ready }}", allow=True), AdmitRule(allow=False))
    assert step.next.on_no_match is NoMatch.QUIET
    assert step.next.arcs == (
        Arc(
            step="b",
            on=ArcEvent.CALL_PARTIAL,
            set=(Assignment(scope=SetScope.CTX, path=("seen",), value="{{ output.data }}"),),
        ),
    )
    assert step.tool.stream == Stream(chunk_rows=1000)


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("{in: [1, 2]}", Loop(items=[1, 2])),
        ("{in: null}", Loop(items=None)),
        ("{in: '{{ xs }}', iterator: x, spec: {max_in_flight: 9}}", Loop(items="{{ xs }}", iterator="x")),
        ("{in: [], spec: {mode: parallel}}", Loop(items=[], mode=LoopMode.PARALLEL, max_in_flight=8)),
        (
            "{in: [], spec: {mode: parallel, max_in_flight: '{{ n }}'}}",
            Loop(items=[], mode=LoopMode.PARALLEL, max_in_flight="{{ n }}"),
        ),
        (
            "{in: [], spec: {mode: fanout, key: '{{ item.id }}', max_item_retries: 0, failure_budget: {share: 0.1}}}",
            Loop(
                items=[],
                mode=LoopMode.FANOUT,
                max_in_flight=8,
                key="{{ item.id }}",
                max_item_retries=0,
                failure_budget=FailureBudget(share=0.1),
            ),
        ),
        (
            "{cursor: {kind: postgres, auth: db, claim: SELECT 1}, spec: {failure_budget: {}}}",
            Loop(cursor=Cursor(kind="postgres", auth="db", claim="SELECT 1"), mode=LoopMode.CURSOR),
        ),
        (
            "{cursor: {kind: postgres, auth: db, claim: SELECT 1}, spec: {mode: cursor, engine: inline, frame: {}}}",
            Loop(
                cursor=Cursor(kind="postgres", auth="db", claim="SELECT 1"),
                mode=LoopMode.CURSOR,
                engine=Engine.INLINE,
                frame=FramePolicy(),
            ),
        ),
        (
            "{in: [], spec: {frame: {max_rows: '{{ n }}', process: frame, on_failure: bisect, max_seconds: 0.5}}}",
            Loop(
                items=[],
                frame=FramePolicy(
                    max_rows="{{ n }}",
                    process=FrameProcess.FRAME,
                    on_failure=FrameFailure.BISECT,
                    max_seconds=0.5,
                ),
            ),
        ),
    ],
)
def test_a_loop_has_its_defaults(loop: str, expected: Loop) -> None:
    assert read_step(f"{{step: a, loop: {loop}, tool: {{kind: noop}}}}").loop == expected


def test_a_loop_knows_whether_it_asks_for_frames() -> None:
    cursor = Cursor(kind="postgres", auth="x", claim="x")

    assert not Loop(items=[]).asks_for_frames
    assert not Loop(items=[], mode=LoopMode.FANOUT).asks_for_frames
    assert Loop(items=[], frame=FramePolicy()).asks_for_frames
    assert Loop(items=[], engine=Engine.SPARK).asks_for_frames
    assert Loop(cursor=cursor, mode=LoopMode.CURSOR).asks_for_frames


def test_a_reduce_stage_is_read() -> None:
    playbook = read(
        """
workflow:
- {step: m, loop: {in: [1]}, tool: {kind: noop}, next: {arcs: [{step: r}]}}
- step: r
  reduce: {from: [m], by: word, partitions: 3, spec: {engine: inline, frame: {max_seconds: 5}, max_in_flight: 2}}
  tool: {kind: spark, code: 'def main(spark, **inputs): ...'}
"""
    )

    assert playbook.steps["r"].reduce == Reduce(
        sources=("m",),
        by=("word",),
        partitions=3,
        engine=Engine.INLINE,
        frame=FramePolicy(max_seconds=5.0),
        max_in_flight=2,
    )


@pytest.mark.parametrize(
    ("tool", "config"),
    [
        ("{kind: http, endpoint: e, params: {a: 1}, json: null}", {"url": "e", "params": {"a": 1}, "json": None}),
        ("{kind: http, url: u, endpoint: e, headers: '{{ h }}'}", {"url": "u", "headers": "{{ h }}"}),
        ("{kind: postgres, commands: [a, b], pool: {size: 2}}", {"commands": ["a", "b"], "pool": {"size": 2}}),
        (
            "{kind: postgres, script: {uri: a.sql, source: {type: file}}}",
            {"script": {"uri": "a.sql", "source": {"type": "file"}}},
        ),
        ("{kind: duckdb, database: f, query: q}", {"database": "f", "query": "q"}),
        ("{kind: ducklake, catalog_name: c, command: q}", {"catalog_name": "c", "command": "q"}),
        ("{kind: shell, cmds: [ls]}", {"cmds": ["ls"]}),
        ("{kind: playbook, path: p, payload: {a: 1}}", {"path": "p", "payload": {"a": 1}}),
        ("{kind: artifact, input: {result_ref: '{{ x._ref }}'}}", {"action": "get"}),
        (
            "{kind: nats, operation: kv_put, bucket: b, key: k, value: [1]}",
            {"operation": "kv_put", "bucket": "b", "key": "k", "value": [1]},
        ),
        ("{kind: nats, operation: js_publish, subject: s}", {"operation": "js_publish", "subject": "s"}),
        (
            "{kind: transfer, source: {type: http, url: u}, target: {type: postgres, table: t, mode: upsert}}",
            {"source": {"type": "http", "url": "u"}, "target": {"type": "postgres", "table": "t", "mode": "upsert"}},
        ),
        (
            "{kind: transfer, mode: replace, source: {type: http}, target: {type: postgres}}",
            {"source": {"type": "http"}, "target": {"type": "postgres", "mode": "replace"}},
        ),
        (
            "{kind: container, image: i, command: [a], args: [b], env: [{name: X, value: y}]}",
            {"image": "i", "command": ["a"], "args": ["b"], "env": [{"name": "X", "value": "y"}]},
        ),
        ("{kind: subscription, source: kafka, batch: '{{ n }}', ack: on_success}", None),
        ("{kind: agent, framework: f, entrypoint: e, payload: {a: 1}}", None),
        ("{kind: snowflake, auth: s, command: SELECT 1}", {"command": "SELECT 1"}),
        ("{kind: script, image: i}", {"image": "i"}),
        ("{kind: script, script: a.py, timeout_seconds: 5}", {"script": {"uri": "a.py"}}),
        (
            "{kind: script, uri: 's3://b/{{ n }}.sh', args: [x]}",
            {"script": {"uri": "s3://b/{{ n }}.sh"}, "args": ["x"]},
        ),
        (
            "{kind: script, script: {uri: a.sh, source: {type: file}}, env: {X: y}}",
            {"script": {"uri": "a.sh", "source": {"type": "file"}}, "env": {"X": "y"}},
        ),
        ("{kind: noop, result: null}", {"result": None}),
        ("{kind: python, script: {uri: a.py}}", {"script": {"uri": "a.py"}}),
        ("{kind: python, code_b64: '{{ c }}'}", {"code_b64": "{{ c }}"}),
    ],
)
def test_each_kind_of_tool_has_its_own_keys(tool: str, config: dict[str, object] | None) -> None:
    read = read_tool(tool)

    assert read.kind in {*ToolKind}
    if config is not None:
        assert read.config == config


@pytest.mark.parametrize(
    ("tool", "seconds", "template"),
    [
        ("{kind: noop}", None, None),
        ("{kind: playbook, path: p}", 300.0, None),
        ("{kind: shell, cmds: ls}", 600.0, None),
        ("{kind: shell, cmds: ls, timeout: 5}", 5.0, None),
        ("{kind: shell, cmds: ls, timeout: '{{ t }}'}", None, "{{ t }}"),
        ("{kind: http, url: u, timeout_seconds: 5}", 5.0, None),
        ("{kind: http, url: u, timeout_seconds: 5, timeout: 6}", 6.0, None),
        ("{kind: http, url: u, timeout_seconds: 5, timeout: 6, spec: {timeout: '{{ t }}'}}", None, "{{ t }}"),
    ],
)
def test_a_timeout_may_stand_in_three_places(tool: str, seconds: float | None, template: str | None) -> None:
    read = read_tool(tool)

    assert (read.timeout_seconds, read.timeout_template) == (seconds, template)
