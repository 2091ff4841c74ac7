-- Credentials by name. Their data are sealed before they come here.

-- name: put — the one of this name is replaced, and keeps its id
INSERT INTO noetl.credential AS stored (
    credential_id, tenant_id, organization_id, name, type, description, tags, key_id, ciphertext, created_by, updated_by
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10)
ON CONFLICT (tenant_id, organization_id, name) DO UPDATE SET
    type = excluded.type,
    description = excluded.description,
    tags = excluded.tags,
    key_id = excluded.key_id,
    ciphertext = excluded.ciphertext,
    -- The time of the row that won, even if a transaction that began later has committed before.
    updated_at = greatest(stored.updated_at, excluded.updated_at),
    updated_by = excluded.updated_by
RETURNING credential_id, name, type, description, tags, key_id, created_at, created_by, updated_at, updated_by,
    credential_id = $1 AS created

-- name: get
SELECT credential_id, tenant_id, organization_id, name, type, description, tags, key_id, ciphertext,
    created_at, created_by, updated_at, updated_by
FROM noetl.credential
WHERE tenant_id = $1 AND organization_id = $2 AND name = $3

-- name: list
SELECT credential_id, name, type, description, tags, key_id, created_at, created_by, updated_at, updated_by
FROM noetl.credential
WHERE tenant_id = $1 AND organization_id = $2 AND name > $3
    AND ($4 = '' OR type = $4)
    AND ($5 = '' OR strpos(lower(name), lower($5)) > 0 OR strpos(lower(description), lower($5)) > 0)
ORDER BY name
LIMIT $6

-- name: delete
DELETE FROM noetl.credential
WHERE tenant_id = $1 AND organization_id = $2 AND name = $3
RETURNING credential_id, name, type, description, tags, key_id, created_at, created_by, updated_at, updated_by

-- name: sealed_otherwise — no scope means everybody's
SELECT credential_id, tenant_id, organization_id, name, type, description, tags, key_id, ciphertext,
    created_at, created_by, updated_at, updated_by
FROM noetl.credential
WHERE key_id <> $1 AND credential_id > $2
    AND ($3::text IS NULL OR (tenant_id = $3 AND organization_id = $4))
ORDER BY credential_id
LIMIT $5

-- name: reseal — not if somebody stored other data meanwhile: no two ciphertexts are alike
UPDATE noetl.credential SET key_id = $3, ciphertext = $4
WHERE credential_id = $1 AND ciphertext = $2
RETURNING credential_id
