"""The in-memory payload store does what every payload store does."""

from typing import cast

import pytest
from noetl_core.payloads import PayloadRef
from noetl_core.ports.payloads import PayloadStore
from noetl_testkit.compliance.collectable_payloads import CollectablePayloadsCompliance
from noetl_testkit.compliance.payload_store import PayloadStoreCompliance
from noetl_testkit.memory.payloads import InMemoryPayloadStore


class TestInMemoryPayloadStore(PayloadStoreCompliance, CollectablePayloadsCompliance):
    @pytest.fixture
    def store(self) -> InMemoryPayloadStore:
        return InMemoryPayloadStore()

    def damage(self, store: PayloadStore, ref: PayloadRef) -> None:
        cast(InMemoryPayloadStore, store).objects[ref.uri] = b"other bytes"

    def object_count(self, store: PayloadStore) -> int:
        return len(cast(InMemoryPayloadStore, store).objects)
