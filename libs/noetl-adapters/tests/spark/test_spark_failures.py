"""What users are told of failures; the texts are what Spark says."""

from noetl_adapters.spark.failures import SOURCE_NAME, describe
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE
from pyspark.errors import AnalysisException, ParseException, PythonException

CODE = "def main(spark):\n    return 1 / 0\n"
IN_TASK = f"""
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/lib/pyspark/worker.py", line 1, in process
  File "{SOURCE_NAME}", line 2, in main
ZeroDivisionError: division by zero

JVM stacktrace:
org.apache.spark.SparkException
"""


def raised(code: str) -> BaseException:
    names: dict[str, object] = {}
    try:
        exec(compile(code, SOURCE_NAME, "exec"), names)  # noqa: S102 - as the driver does it
        names["main"](None)  # type: ignore[operator]
    except Exception as exc:
        return exc
    raise AssertionError("it should have failed")


def test_an_error_of_the_code_has_its_line() -> None:
    failure = describe(raised(CODE), CODE)

    assert (failure.kind, failure.code) == ("transform", "PY_ZeroDivisionError")
    assert failure.message == "division by zero (line 2)"
    assert failure.lines == "line 2, in main: return 1 / 0"


def test_code_that_is_no_python_is_told_with_its_line() -> None:
    failure = describe(raised("a = 1\nb = = 2"), "")

    assert (failure.kind, failure.code, failure.message) == ("parse", "PY_SyntaxError", "invalid syntax (line 2)")


def test_an_error_inside_of_a_task_is_told_as_if_it_were_here() -> None:
    failure = describe(PythonException(IN_TASK), CODE)

    assert (failure.code, failure.message) == ("PY_ZeroDivisionError", "division by zero (line 2)")
    assert "JVM" not in failure.message


def test_a_query_that_does_not_parse_is_told_by_spark_and_not_by_java() -> None:
    said = "[PARSE_SYNTAX_ERROR] Syntax error at or near 'y'. (line 1, pos 13)\n\n== SQL ==\nselect x frm y"
    java = "\n\tat org.apache.spark.sql.Parser.parse(Parser.scala:1)\n"

    failure = describe(ParseException(said + java), None)

    assert (failure.kind, failure.message) == ("parse", said)


def test_columns_that_are_not_there_are_a_matter_of_the_schema() -> None:
    assert describe(AnalysisException("[UNRESOLVED_COLUMN] no such column"), None).kind == "schema"


def test_a_payload_that_is_gone_may_be_tried_again() -> None:
    text = IN_TASK.replace("ZeroDivisionError: division by zero", "noetl_core.errors.NotFound: payload x is not there")

    failure = describe(PythonException(text), None)

    assert (failure.kind, failure.code, failure.retryable) == ("storage_access", REFERENCE_NOT_AVAILABLE, True)
