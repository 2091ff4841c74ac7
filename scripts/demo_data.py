"""`make demo-data`: the data pipeline at work on a stack of its own, which is gone afterwards.

Rows of a table are enriched from an HTTP API by cursor frames, generated text is counted by a fan-out and a reduce, and
two results are joined in Spark SQL: all of it on Spark. SIZE is megabytes of text, ROWS is customers.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from noetl_testkit.local_stack import LocalStack, local_stack

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "howto"
WORDS_A_MEGABYTE = 154_000
PARTS_OF_MEGABYTES = 2
"""Text of one item of the fan-out."""
SETTINGS = {"NOETL_SPARK_WARM": "true"}
"""Frames run on Spark in such a worker, those of `enrich` too, which leaves it to the worker."""


class Shop(BaseHTTPRequestHandler):
    """`/customers/N` says who that is."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        number = int(self.path.rpartition("/")[2])
        data = json.dumps({"score": number % 100, "name": f"customer {number}"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the library
        """Says nothing."""


@contextmanager
def shop() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo-data", description=(__doc__ or "").split("\n\n", 1)[1])
    parser.add_argument("--megabytes", type=int, default=300, help="of text to count [default: 300]")
    parser.add_argument("--rows", type=int, default=2000, help="customers to enrich [default: 2000]")
    asked = parser.parse_args()
    say("Start PostgreSQL, NATS and the six services of NoETL; the worker with a Spark session")
    with local_stack(SETTINGS) as stack, shop() as api:
        file = stack.home.root / "shop_db.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps({"dsn": stack.owner_dsn}), encoding="utf-8")
        noetl(stack, "credential", "put", "shop_db", "--type", "postgres", "--data-file", str(file))
        say(f"Enrich {asked.rows} rows of a table from an HTTP API on Spark: a frame is 50 rows, claimed at once")
        noetl(stack, "run", example("enrich"), "--set", f"api={api}", "--set", f"customers={asked.rows}")
        say(f"Count the words of {asked.megabytes} MB of generated text: a fan-out and a reduce on Spark")
        parts = max(asked.megabytes // PARTS_OF_MEGABYTES, 1)
        words = asked.megabytes * WORDS_A_MEGABYTE // parts
        noetl(stack, "run", example("word_count"), "--set", f"parts={parts}", "--set", f"words={words}")
        say("Join two results in Spark SQL")
        noetl(stack, "run", example("spark"))
        say("Stop everything and remove it")
    return 0


def example(name: str) -> str:
    return str(EXAMPLES / f"{name}.yaml")


def noetl(stack: LocalStack, *arguments: str) -> None:
    sys.stdout.write(f"$ noetl {shlex.join(arguments)}\n")
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "noetl_cli", *arguments]
    subprocess.run(command, env=stack.environment(), check=True)  # noqa: S603 - our own command


def say(text: str) -> None:
    sys.stdout.write(f"\n\033[1m# {text}\033[0m\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as exc:
        sys.exit(exc.returncode)
