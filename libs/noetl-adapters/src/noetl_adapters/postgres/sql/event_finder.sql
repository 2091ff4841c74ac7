-- Events by their identity.

-- name: find
SELECT stream_version, aggregate_version, ingest_time, prev_checksum, checksum, body, tenant_id, organization_id
FROM noetl.event
WHERE event_id = $1
