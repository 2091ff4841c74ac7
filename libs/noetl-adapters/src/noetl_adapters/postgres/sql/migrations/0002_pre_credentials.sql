-- Credentials, encrypted by api before they come here: whoever reads this table reads no secret.

CREATE TABLE noetl.credential (
    credential_id   bigint PRIMARY KEY,
    tenant_id       text NOT NULL,
    organization_id text NOT NULL,
    -- By code point, so that listings have one order everywhere.
    name            text COLLATE "C" NOT NULL,
    type            text NOT NULL,
    description     text NOT NULL,
    tags            text[] NOT NULL,
    -- Which key opens the data; the data are bound to tenant, organization and name.
    key_id          text NOT NULL,
    ciphertext      bytea NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    created_by      text NOT NULL,
    updated_at      timestamptz NOT NULL DEFAULT now(),
    updated_by      text NOT NULL,
    UNIQUE (tenant_id, organization_id, name)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON noetl.credential TO noetl_api;
