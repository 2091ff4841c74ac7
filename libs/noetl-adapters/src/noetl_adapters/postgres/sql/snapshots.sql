-- name: find
SELECT execution_id, stream_version, tenant_id, organization_id, event_id, event_checksum, reached_at, code_version,
       upcasters, row_format, state_format, payload_root, encryption_context::text, surfaces::text, row_counts::text,
       parts, body_sha256, checksum
FROM noetl.projection_snapshot
WHERE execution_id = $1 AND stream_version <= $2 AND code_version = $3 AND upcasters = $4 AND row_format = $5
  AND state_format = $6
ORDER BY stream_version DESC
LIMIT 1

-- name: part — of the snapshot that was found, not of one that has taken its place
SELECT part.body
FROM noetl.projection_snapshot_part AS part
JOIN noetl.projection_snapshot AS snapshot USING (execution_id, stream_version)
WHERE part.execution_id = $1 AND part.stream_version = $2 AND part.part = $3 AND snapshot.checksum = $4

-- name: positions
SELECT stream_version
FROM noetl.projection_snapshot
WHERE execution_id = $1 AND code_version = $2 AND upcasters = $3 AND row_format = $4 AND state_format = $5
ORDER BY stream_version

-- name: drop_other_rules
DELETE FROM noetl.projection_snapshot
WHERE execution_id = $1
  AND (code_version <> $2 OR upcasters <> $3 OR row_format <> $4 OR state_format <> $5
       OR NOT stream_version = ANY($6::bigint[]))

-- name: write
INSERT INTO noetl.projection_snapshot (
    execution_id, stream_version, tenant_id, organization_id, event_id, event_checksum, reached_at, code_version,
    upcasters, row_format, state_format, payload_root, encryption_context, surfaces, row_counts, parts, body_sha256,
    checksum)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
ON CONFLICT (execution_id, stream_version) DO NOTHING
RETURNING true

-- name: write_part
INSERT INTO noetl.projection_snapshot_part (execution_id, stream_version, part, body) VALUES ($1, $2, $3, $4)

-- name: drop
DELETE FROM noetl.projection_snapshot WHERE execution_id = $1 AND stream_version = $2 AND checksum = $3
