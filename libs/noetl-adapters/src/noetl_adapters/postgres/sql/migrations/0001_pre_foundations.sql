-- The canonical log with its outbox, the catalog, shard leases and the first projections; roles with only their grants.

CREATE TABLE noetl.installation (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    shard_count  integer NOT NULL CHECK (shard_count BETWEEN 1 AND 4096),
    log_generation uuid NOT NULL DEFAULT gen_random_uuid(),
    created_at   timestamptz NOT NULL DEFAULT now()
);

-- Ids: a process draws a node number once and then makes snowflakes by itself.
CREATE SEQUENCE noetl.snowflake_node AS integer MINVALUE 0 MAXVALUE 1023 CYCLE;

-- Heads of streams: one row per execution, locked for every append to it.
CREATE TABLE noetl.stream (
    execution_id        bigint PRIMARY KEY,
    tenant_id           text NOT NULL,
    organization_id     text NOT NULL,
    shard               integer NOT NULL,
    version             bigint NOT NULL CHECK (version > 0),
    last_checksum       text NOT NULL,
    last_ingest_time    timestamptz NOT NULL,
    terminal            boolean NOT NULL DEFAULT false,
    parent_execution_id bigint,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL
) WITH (fillfactor = 70);
-- BRIN, because a summarizing index leaves head updates heap-only; a B-tree on a column that every append changes would not.
CREATE INDEX stream_moved_idx ON noetl.stream USING brin (updated_at)
    WITH (pages_per_range = 16, autosummarize = on);
-- Open executions of a shard, for an owner that takes it over; head moves do not touch it until the last one.
CREATE INDEX stream_open_idx ON noetl.stream (shard) WHERE NOT terminal;

-- The log. Bytes are the truth; columns are extracts of them. Partitioned by execution_id, which is a slice of time.
CREATE TABLE noetl.event (
    execution_id      bigint NOT NULL,
    stream_version    bigint NOT NULL,
    event_id          bigint NOT NULL,
    tenant_id         text NOT NULL,
    organization_id   text NOT NULL,
    event_type        text NOT NULL,
    aggregate_type    text NOT NULL,
    aggregate_id      text NOT NULL,
    aggregate_version bigint NOT NULL,
    idempotency_key   text NOT NULL,
    content_sha256    text NOT NULL,
    event_time        timestamptz NOT NULL,
    ingest_time       timestamptz NOT NULL,
    node_name         text,
    stage_id          text,
    frame_id          text,
    command_id        text,
    loop_id           text,
    epoch_id          text,
    result            jsonb,
    prev_checksum     text NOT NULL,
    checksum          text NOT NULL,
    body              bytea NOT NULL,
    PRIMARY KEY (execution_id, stream_version),
    CONSTRAINT chk_event_result_shape CHECK (
        result IS NULL OR (
            jsonb_typeof(result) = 'object'
            AND result - ARRAY['status', 'reference', 'parent_ref', 'context'] = '{}'::jsonb
            AND coalesce(result ->> 'status', '') IN ('ok', 'error', 'skipped', 'break', 'retry')
            AND coalesce(jsonb_typeof(result -> 'reference'), 'null') IN ('object', 'null')
            AND coalesce(jsonb_typeof(result -> 'parent_ref'), 'null') IN ('object', 'null')
            AND coalesce(jsonb_typeof(result -> 'context'), 'null') IN ('object', 'null')
            AND NOT coalesce(result -> 'context', '{}'::jsonb)
                ?| ARRAY['rows', 'columns', 'data', 'response', 'result', 'payload']
        )
    )
) PARTITION BY RANGE (execution_id);

CREATE UNIQUE INDEX uidx_event_event_id ON noetl.event (event_id, execution_id);
CREATE UNIQUE INDEX uidx_event_idempotency_key ON noetl.event (execution_id, idempotency_key);
CREATE UNIQUE INDEX uidx_event_aggregate_version ON noetl.event (execution_id, aggregate_id, aggregate_version)
    WHERE aggregate_type <> 'execution';
CREATE UNIQUE INDEX uidx_event_command_issued_command_id ON noetl.event (execution_id, command_id)
    WHERE event_type = 'command.issued';
CREATE UNIQUE INDEX uidx_event_loop_done_loop_id ON noetl.event (execution_id, loop_id)
    WHERE event_type = 'loop.done';
CREATE UNIQUE INDEX uidx_event_loop_fanin_completed ON noetl.event (execution_id, epoch_id)
    WHERE event_type = 'loop.fanin.completed';
CREATE UNIQUE INDEX uidx_event_checkpoint_committed ON noetl.event (execution_id, epoch_id)
    WHERE event_type = 'checkpoint.committed';
CREATE INDEX idx_event_loop_id_type ON noetl.event (execution_id, loop_id, event_type) WHERE loop_id IS NOT NULL;
CREATE INDEX idx_event_exec_stage_event_id_desc ON noetl.event (execution_id, stage_id, event_id DESC)
    WHERE stage_id IS NOT NULL;
CREATE INDEX idx_event_exec_frame_event_id_desc ON noetl.event (execution_id, frame_id, event_id DESC)
    WHERE frame_id IS NOT NULL;

-- What follows a commit to the bus. Rows are taken until they are gone; there is no watermark.
CREATE TABLE noetl.outbox (
    outbox_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard        integer NOT NULL,
    execution_id bigint NOT NULL,
    subject      text NOT NULL,
    message_id   text NOT NULL,
    headers      jsonb NOT NULL,
    codec        text NOT NULL DEFAULT 'json',
    body         bytea NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

-- Which publisher drains which shard of the outbox; rows that expire, never session locks.
CREATE TABLE noetl.outbox_lease (
    shard        integer PRIMARY KEY,
    owner        text,
    epoch        bigint NOT NULL DEFAULT 0,
    leased_until timestamptz NOT NULL DEFAULT '-infinity'
);
CREATE TABLE noetl.outbox_publisher (
    owner        text PRIMARY KEY,
    seen_at      timestamptz NOT NULL
);

-- The first start under a key, per tenant and organization; outlives the execution.
CREATE TABLE noetl.start_key (
    tenant_id       text NOT NULL,
    organization_id text NOT NULL,
    start_key       text NOT NULL,
    execution_id    bigint NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, organization_id, start_key)
);

-- Playbooks. A version never changes.
CREATE TABLE noetl.catalog (
    catalog_id      bigint PRIMARY KEY,
    tenant_id       text NOT NULL,
    organization_id text NOT NULL,
    path            text NOT NULL,
    version         integer NOT NULL CHECK (version > 0),
    name            text NOT NULL,
    sha256          text NOT NULL,
    content         text NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    created_by      text NOT NULL,
    UNIQUE (tenant_id, organization_id, path, version)
);

-- Shard ownership of planners and projectors.
CREATE TABLE noetl.runtime (
    runtime_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    role         text NOT NULL,
    instance     text NOT NULL,
    incarnation  text NOT NULL,
    -- Incarnations that a later one of the same name has replaced: they get no lease any more.
    deposed      text[] NOT NULL DEFAULT '{}',
    address      text NOT NULL,
    leased_until timestamptz NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    UNIQUE (role, instance)
);
CREATE TABLE noetl.execution_shard (
    role             text NOT NULL,
    shard_id         integer NOT NULL,
    owner_runtime_id bigint REFERENCES noetl.runtime (runtime_id),
    owner_instance   text,
    epoch            bigint NOT NULL DEFAULT 0,
    leased_until     timestamptz NOT NULL DEFAULT '-infinity',
    updated_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (role, shard_id)
);

-- Projections: written by projectors only, rebuilt from the log at any time.
CREATE TABLE noetl.execution (
    execution_id            bigint PRIMARY KEY,
    tenant_id               text NOT NULL,
    organization_id         text NOT NULL,
    shard                   integer NOT NULL,
    path                    text NOT NULL,
    version                 integer NOT NULL,
    catalog_id              text NOT NULL,
    parent_execution_id     bigint,
    status                  text NOT NULL,
    last_event_type         text NOT NULL,
    last_node_name          text,
    start_time              timestamptz NOT NULL,
    end_time                timestamptz,
    -- json, not jsonb: the canonical text comes back as it was written, zero characters and large numbers too.
    error                   json,
    state                   json NOT NULL,
    stream_version          bigint NOT NULL,
    last_projected_event_id bigint NOT NULL,
    event_time_watermark    timestamptz NOT NULL,
    projected_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    projector_epoch         bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX execution_listing_idx ON noetl.execution (tenant_id, organization_id, execution_id DESC);
CREATE INDEX execution_status_idx ON noetl.execution (tenant_id, organization_id, status, execution_id DESC);
CREATE INDEX execution_path_idx ON noetl.execution (tenant_id, organization_id, path, execution_id DESC);

CREATE TABLE noetl.command (
    execution_id      bigint NOT NULL,
    command_id        text NOT NULL,
    tenant_id         text NOT NULL,
    organization_id   text NOT NULL,
    step              text NOT NULL,
    activation        integer NOT NULL,
    attempt           integer NOT NULL,
    status            text NOT NULL,
    worker_id         text,
    lease_until       timestamptz,
    aggregate_version bigint NOT NULL,
    issued_at         timestamptz NOT NULL,
    ended_at          timestamptz,
    trace             text,
    stream_version    bigint NOT NULL,
    PRIMARY KEY (execution_id, command_id)
) WITH (fillfactor = 70);
CREATE INDEX command_lease_idx ON noetl.command (lease_until) WHERE lease_until IS NOT NULL;

CREATE TABLE noetl.projection_checkpoint (
    shard_id                integer PRIMARY KEY,
    last_projected_event_id bigint,
    last_projected_at       timestamptz,
    lag_ms                  double precision,
    -- Every head that moved before this time is in the projections: where the next owner begins to compare.
    caught_up_to            timestamptz
);

-- Partitions are made ahead by api, which owns no tables: the function does it with the owner's rights. The table is
-- made first and attached then, because creating it in place would lock out every reader and writer of the log.
CREATE FUNCTION noetl.ensure_event_partition(lower_id bigint, upper_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    partition_name text := format('event_%s', lower_id);
BEGIN
    IF to_regclass(format('noetl.%I', partition_name)) IS NOT NULL THEN
        RETURN false;
    END IF;
    -- Held by one replica at a time; readers and writers of the log do not mind it.
    LOCK TABLE noetl.event IN SHARE UPDATE EXCLUSIVE MODE;
    IF to_regclass(format('noetl.%I', partition_name)) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE noetl.%I (LIKE noetl.event INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', partition_name);
    EXECUTE format('ALTER TABLE noetl.event ATTACH PARTITION noetl.%I FOR VALUES FROM (%L) TO (%L)',
                   partition_name, lower_id, upper_id);
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION noetl.ensure_event_partition(bigint, bigint) FROM PUBLIC;

-- One role per service that speaks to the database, with only its grants. Nobody may change or delete an event.
DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['noetl_api', 'noetl_publisher', 'noetl_projector'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I LOGIN', role_name);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL; -- Roles belong to the whole server; another database of it has made this one.
        END;
        EXECUTE format('GRANT USAGE ON SCHEMA noetl TO %I', role_name);
    END LOOP;
END $$;

GRANT SELECT ON noetl.installation TO noetl_api, noetl_publisher, noetl_projector;
GRANT SELECT, INSERT ON noetl.event TO noetl_api;
GRANT SELECT, INSERT, UPDATE ON noetl.stream TO noetl_api;
GRANT INSERT ON noetl.outbox TO noetl_api;
GRANT SELECT, INSERT ON noetl.start_key, noetl.catalog TO noetl_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON noetl.runtime TO noetl_api;
GRANT SELECT, INSERT, UPDATE ON noetl.execution_shard TO noetl_api;
GRANT USAGE ON SEQUENCE noetl.snowflake_node TO noetl_api;
GRANT EXECUTE ON FUNCTION noetl.ensure_event_partition(bigint, bigint) TO noetl_api;

GRANT SELECT, DELETE ON noetl.outbox TO noetl_publisher;
GRANT SELECT, INSERT, UPDATE ON noetl.outbox_lease TO noetl_publisher;
GRANT SELECT, INSERT, UPDATE, DELETE ON noetl.outbox_publisher TO noetl_publisher;

GRANT SELECT, INSERT, UPDATE ON noetl.execution, noetl.command, noetl.projection_checkpoint TO noetl_projector;
