"""What a publisher measures: the names are declared here and in telemetry/metrics.yaml, and nowhere else."""

from noetl_servicekit.metrics import SIZE_BUCKETS, MetricSet


class PublisherMetrics:
    """The way of messages from their commit to the acknowledgement of the bus."""

    def __init__(self, metrics: MetricSet) -> None:
        self.published = metrics.counter("noetl_outbox_published_total", "Messages that the bus has acknowledged.")
        self.publish_errors = metrics.counter(
            "noetl_outbox_publish_errors_total", "Batches that the bus did not acknowledge as a whole."
        )
        self.refused = metrics.counter(
            "noetl_outbox_refused_total", "Messages dropped because no stream can ever take them."
        )
        self.batch_rows = metrics.histogram(
            "noetl_outbox_batch_rows",
            "Messages published together; neighbouring events share one.",
            buckets=SIZE_BUCKETS,
        )
        self.commit_to_ack_seconds = metrics.histogram(
            "noetl_outbox_commit_to_ack_seconds", "Time from writing a row to the acknowledgement of its message."
        )
        self.waiting_rows = metrics.gauge(
            "noetl_outbox_waiting_rows", "Rows in the outbox, whoever publishes them, counted up to a limit."
        )
        self.oldest_age_seconds = metrics.gauge(
            "noetl_outbox_oldest_age_seconds", "Age of the oldest row in the outbox, 0 when it is empty."
        )
        self.held_shards = metrics.gauge("noetl_outbox_held_shards", "Shards that this process publishes.")
