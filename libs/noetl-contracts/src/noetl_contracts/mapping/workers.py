"""Workers as messages."""

from __future__ import annotations

from noetl.worker.v1 import worker_pb2 as pb
from noetl_core.ports.workers import PresentWorker, WaitingRetry, WorkerReport

from noetl_contracts.mapping.times import moment, timestamp


def report_message(report: WorkerReport) -> pb.WorkerReport:
    """A report as a message."""
    return pb.WorkerReport(
        worker_id=report.worker_id,
        pool=report.pool,
        locator=report.locator,
        slots=report.slots,
        busy=report.busy,
        kinds=report.kinds,
        version=report.version,
        retries=[
            pb.WaitingRetry(
                command_id=one.command_id,
                task=one.task,
                attempt=one.attempt,
                attempts=one.attempts,
                next_at=timestamp(one.next_at),
            )
            for one in report.retries
        ],
    )


def report(message: pb.WorkerReport) -> WorkerReport:
    """A report."""
    return WorkerReport(
        worker_id=message.worker_id,
        pool=message.pool,
        locator=message.locator,
        slots=message.slots,
        busy=message.busy,
        kinds=tuple(message.kinds),
        version=message.version,
        retries=tuple(
            WaitingRetry(
                command_id=one.command_id,
                task=one.task,
                attempt=one.attempt,
                attempts=one.attempts,
                next_at=moment(one.next_at),
            )
            for one in message.retries
        ),
    )


def worker_message(worker: PresentWorker) -> pb.Worker:
    """A worker as a message."""
    return pb.Worker(
        report=report_message(worker.report),
        started_at=timestamp(worker.started_at),
        heard_at=timestamp(worker.heard_at),
    )


def worker(message: pb.Worker) -> PresentWorker:
    """A worker."""
    return PresentWorker(
        report=report(message.report), started_at=moment(message.started_at), heard_at=moment(message.heard_at)
    )
