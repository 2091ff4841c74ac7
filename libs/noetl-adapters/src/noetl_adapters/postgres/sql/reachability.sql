-- The whole log and all playbooks, page by page, for whoever has to know what refers to payloads.

-- name: now
SELECT clock_timestamp()

-- name: by_primary_key — planned without knowing how few rows are wanted, a page might sort the whole log
SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off

-- name: events — a page is so many rows, whoever's they are: looking for those of one organization is bounded too
SELECT execution_id, stream_version, tenant_id, organization_id, event_type, ingest_time,
       CASE WHEN $4::text IS NULL OR (tenant_id = $4 AND organization_id = $5) THEN body END AS body
FROM noetl.event
WHERE execution_id >= $1::bigint AND (execution_id, stream_version) > ($1::bigint, $2::bigint)
ORDER BY execution_id, stream_version
LIMIT $3

-- name: playbooks
SELECT catalog_id, tenant_id, organization_id, content
FROM noetl.catalog
WHERE catalog_id > $1 AND ($3::text IS NULL OR (tenant_id = $3 AND organization_id = $4))
ORDER BY catalog_id
LIMIT $2
