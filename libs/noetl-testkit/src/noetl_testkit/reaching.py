"""Which payloads no event reaches: after a run in which nothing went wrong there are none."""

from noetl_core.collection.documents import addresses_in, documents_in
from noetl_core.collection.reach import digests_in, digests_of

from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore


def unreached(log: InMemoryEventLog, payloads: InMemoryPayloadStore) -> list[bytes]:
    """The bytes of those that a collector would take for garbage."""
    bodies = [event.body for stream in log.streams.values() for event in stream.events]
    stored = {uri.rpartition("/")[2]: data for uri, data in payloads.objects.items()}
    reached = {sha256 for body in bodies for sha256 in digests_in(body)}
    documents = {sha256 for body in bodies for sha256 in documents_in(body)}
    read: set[str] = set()
    while waiting := (documents - read) & stored.keys():
        for sha256 in waiting:
            reached.update(digests_of(stored[sha256]))
            documents.update(addresses_in(stored[sha256]))
        read |= waiting
    return [data for sha256, data in stored.items() if sha256 not in reached]
