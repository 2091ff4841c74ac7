-- Events by their identity.

-- name: find
SELECT stream_version, aggregate_version, ingest_time, prev_checksum, checksum, body, tenant_id, organization_id
FROM noetl.event
WHERE event_id = $1

-- name: last_of_frame
-- Of the few events of a frame the one that counts last: ids are not in the order of the log.
SELECT stream_version, aggregate_version, ingest_time, prev_checksum, checksum, body, tenant_id, organization_id
FROM noetl.event
WHERE execution_id = $1 AND frame_id = $2
ORDER BY stream_version DESC
LIMIT 1
