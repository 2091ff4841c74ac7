"""What the playbook language promises about user Python, without a process around it."""

from collections.abc import Mapping

import pytest
from noetl_worker.tools.python_failure import describe_exception
from noetl_worker.tools.python_user_code import UserCode, run_user_code


def run(
    source: str,
    *,
    inputs: Mapping[str, object] | None = None,
    context: Mapping[str, object] | None = None,
    libs: Mapping[str, object] | None = None,
) -> object:
    return run_user_code(UserCode(source=source, inputs=inputs or {}, context=context or {}, libs=libs or {}))


def test_the_variable_result_is_the_result() -> None:
    assert run("result = who + '!'", inputs={"who": "world"}) == "world!"


def test_without_result_and_main_the_result_is_null() -> None:
    assert run("x = 1") is None


def test_a_result_that_was_set_to_null_is_null_even_with_a_main() -> None:
    assert run("result = None\ndef main(): return 1") is None


def test_every_input_is_a_native_reassignable_name() -> None:
    assert run("n += 1\nitems.append(n)\nresult = items", inputs={"n": 1, "items": [0]}) == [0, 2]


def test_all_inputs_stand_in_input_data_and_args() -> None:
    assert run("result = [input_data['a'], args['a b']]", inputs={"a": 1, "a b": 2}) == [1, 2]


def test_the_four_modules_and_the_context_are_there() -> None:
    source = "result = [os.sep, json.dumps(context['n']), datetime.date(2024, 1, 2).day, uuid.UUID(int=0).int]"
    assert run(source, context={"n": [1]}) == ["/", "[1]", 2, 0]


def test_an_input_hides_a_module_of_its_name() -> None:
    assert run("result = json", inputs={"json": "mine"}) == "mine"


def test_one_call_leaves_no_names_to_the_next() -> None:
    run("leftover = 1")

    with pytest.raises(NameError):
        run("result = leftover")


def test_libs_import_modules_and_members_under_an_alias() -> None:
    libs = {
        "m": "math",
        "p": "os.path",
        "join": {"from": "os.path", "import": "join"},
        "enc": {"from": "json", "import": "encoder"},
    }
    source = "result = [m.floor(1.5), p.basename('a/b'), join('a', 'b'), enc.JSONEncoder.__name__]"
    assert run(source, libs=libs) == [1, "b", "a/b", "JSONEncoder"]


def test_a_missing_lib_raises_as_an_import_would() -> None:
    with pytest.raises(ModuleNotFoundError):
        run("result = 1", libs={"x": "no_such_module_anywhere"})


# --- main -------------------------------------------------------------------------------------------------


def test_main_gets_arguments_by_name_from_inputs_then_from_the_context() -> None:
    source = "def main(a, b, c=3): return [a, b, c]"
    assert run(source, inputs={"a": 1}, context={"a": "hidden", "b": 2}) == [1, 2, 3]


def test_main_may_ask_for_the_context_and_for_all_inputs() -> None:
    source = "def main(context, input_data): return [context, input_data]"
    assert run(source, inputs={"a": 1}, context={"b": 2}) == [{"b": 2}, {"a": 1}]


def test_keyword_arguments_take_the_inputs_that_have_no_parameter() -> None:
    source = "def main(a, /, *more, b, **rest): return [a, more, b, rest]"
    assert run(source, inputs={"a": 1, "b": 2, "c": 3}, context={"d": 4}) == [1, (), 2, {"c": 3}]


def test_an_argument_that_nobody_has_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required"):
        run("def main(a): return a")


def test_main_may_be_async() -> None:
    assert run("import asyncio\nasync def main(n):\n  await asyncio.sleep(0)\n  return n", inputs={"n": 1}) == 1


def test_an_input_called_result_does_not_keep_main_from_being_called() -> None:
    assert run("def main(result): return len(result)", inputs={"result": [1, 2]}) == 2


def test_a_main_that_is_no_function_is_no_main() -> None:
    assert run("x = 1", inputs={"main": "text"}) is None


# --- return at the top ------------------------------------------------------------------------------------


def test_return_works_at_the_top() -> None:
    assert run("if n > 1:\n  return {'n': n}\nreturn None", inputs={"n": 2}) == {"n": 2}


def test_code_that_returns_still_has_global_names() -> None:
    source = """
from __future__ import annotations
from math import *
import collections
total: int = 0
count: int
n = n + 1
def twice():
    global total
    total = n * 2
class Point:
    x: int = 3
twice()
for last in [1, 2]:
    if (found := last) == 2 and floor(2.5) == 2:
        return [total, n, last, found, Point.x, collections.Counter('a')['a'], [i for i in range(2)]]
"""
    assert run(source, inputs={"n": 1}) == [4, 2, 2, 2, 3, 1, [0, 1]]


def test_a_bare_return_leaves_the_variable_result() -> None:
    assert run("result = 1\nif True: return\nresult = 2") == 1


def test_code_with_a_return_that_is_not_reached_goes_on_to_main() -> None:
    assert run("if not n: return 0\ndef main(n): return n", inputs={"n": 5}) == 5


def test_a_return_inside_functions_only_is_nothing_special() -> None:
    assert run("f = lambda: 1\ndef g():\n  return f()\nresult = g()") == 1


def test_an_array_like_result_is_not_compared_with_anything() -> None:
    source = "class A:\n  def __eq__(self, other): raise ValueError\nreturn A()"
    assert type(run(source)).__name__ == "A"


def test_yield_beside_a_return_is_refused() -> None:
    with pytest.raises(SyntaxError):
        run("yield 1\nreturn 2")


def test_a_dataclass_with_textual_annotations_can_be_defined() -> None:
    source = "from __future__ import annotations\nfrom dataclasses import dataclass, asdict\n"
    source += "@dataclass\nclass P:\n  x: int\nresult = asdict(P(x=1))"
    assert run(source) == {"x": 1}


# --- failures ---------------------------------------------------------------------------------------------


def failure_of(source: str) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011, B017, RUF100 - any of them
        run(source)
    return caught.value


def test_a_failure_names_its_class_message_and_the_users_lines() -> None:
    source = "import json\ndef parse(text):\n    return json.loads(text)\n\nresult = parse('{')"

    failure = describe_exception(failure_of(source), source)

    assert failure["kind"] == "parse"
    assert failure["code"] == "PY_JSONDecodeError"
    assert not failure["retryable"]
    assert failure["message"].startswith("Expecting property name")
    assert failure["traceback"] == "line 5: result = parse('{')\nline 3, in parse: return json.loads(text)"


@pytest.mark.parametrize(
    ("source", "kind", "retryable"),
    [
        ("raise ValueError('x')", "transform", False),
        ("raise TimeoutError", "timeout", True),
        ("raise ConnectionResetError", "connection", True),
        ("raise SystemExit(0)", "transform", False),
        ("raise KeyboardInterrupt", "transform", False),
    ],
)
def test_the_kind_follows_the_class(source: str, kind: str, retryable: bool) -> None:
    failure = describe_exception(failure_of(source), source)

    assert (failure["kind"], failure["retryable"]) == (kind, retryable)


def test_a_syntax_error_says_where_it_is() -> None:
    source = "x = 1\ny = (\n"

    failure = describe_exception(failure_of(source), source)

    assert failure["code"] == "PY_SyntaxError"
    assert failure["message"] == "'(' was never closed (line 2)"
    assert failure["traceback"] == "line 2: y = ("


def test_lines_of_code_that_returns_at_the_top_are_right() -> None:
    source = "if True:\n    x = 1 / 0\nreturn x"

    assert describe_exception(failure_of(source), source)["traceback"] == "line 2: x = 1 / 0"


def test_deep_recursion_is_told_in_a_few_lines() -> None:
    source = "def f(n): return f(n + 1)\nf(0)"

    failure = describe_exception(failure_of(source), source)

    assert failure["code"] == "PY_RecursionError"
    assert failure["traceback"].startswith("…")
    assert len(failure["traceback"].splitlines()) == 11


def test_an_exception_that_cannot_be_printed_is_named() -> None:
    source = "class Odd(Exception):\n  def __str__(self): raise SystemExit\nraise Odd"

    assert describe_exception(failure_of(source), source)["message"] == "Odd"


def test_a_long_message_is_cut_and_a_lone_surrogate_escaped() -> None:
    source = "raise ValueError('\\ud800' + 'x' * 10_000)"

    message = describe_exception(failure_of(source), source)["message"]

    assert message.startswith("\\ud800xxx")
    assert len(message) < 5000
