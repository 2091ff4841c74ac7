-- Playbooks by path and version. A version never changes, and versions have no gaps.

-- name: add_version — nothing is returned if the newest version has this content, or if somebody else was faster
INSERT INTO noetl.catalog (catalog_id, tenant_id, organization_id, path, version, name, sha256, content, created_by)
SELECT $1, $2, $3, $4, coalesce(newest.version, 0) + 1, $5, $6, $7, $8
FROM (SELECT) AS one
LEFT JOIN (
    SELECT version, sha256 FROM noetl.catalog
    WHERE tenant_id = $2 AND organization_id = $3 AND path = $4
    ORDER BY version DESC LIMIT 1
) AS newest ON true
WHERE newest.sha256 IS DISTINCT FROM $6
ON CONFLICT (tenant_id, organization_id, path, version) DO NOTHING
RETURNING catalog_id, path, version, name, sha256, created_at, created_by

-- name: newest
SELECT catalog_id, path, version, name, sha256, created_at, created_by, content
FROM noetl.catalog
WHERE tenant_id = $1 AND organization_id = $2 AND path = $3
ORDER BY version DESC
LIMIT 1

-- name: version
SELECT catalog_id, path, version, name, sha256, created_at, created_by, content
FROM noetl.catalog
WHERE tenant_id = $1 AND organization_id = $2 AND path = $3 AND version = $4

-- name: by_id — no scope means any tenant's
SELECT catalog_id, path, version, name, sha256, created_at, created_by, content
FROM noetl.catalog
WHERE catalog_id = $1 AND ($2::text IS NULL OR (tenant_id = $2 AND organization_id = $3))

-- name: list_newest
SELECT DISTINCT ON (path) catalog_id, path, version, name, sha256, created_at, created_by
FROM noetl.catalog
WHERE tenant_id = $1 AND organization_id = $2 AND path > $3
ORDER BY path, version DESC
LIMIT $4

-- name: list_versions
SELECT catalog_id, path, version, name, sha256, created_at, created_by
FROM noetl.catalog
WHERE tenant_id = $1 AND organization_id = $2 AND path = $3 AND version < $4
ORDER BY version DESC
LIMIT $5
