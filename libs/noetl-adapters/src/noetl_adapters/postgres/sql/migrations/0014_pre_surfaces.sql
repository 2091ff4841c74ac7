-- Rows of all surfaces: stages, frames, loops and business objects get tables, commands the rest of their fields.
--
-- Everything here is made from the log and written by projectors only, one column for each field of a row. What was
-- projected before lacks the new rows, so all of it is made again: projectors do so as soon as they compare heads.

TRUNCATE noetl.execution, noetl.command, noetl.projection_checkpoint;

ALTER TABLE noetl.command
    -- The order of bytes is the order in which rows count for checksums.
    ALTER COLUMN command_id TYPE text COLLATE "C",
    ADD COLUMN pool text,
    ADD COLUMN cause_step text,
    ADD COLUMN deadline timestamptz,
    ADD COLUMN internal boolean NOT NULL DEFAULT false,
    ADD COLUMN loop_id text,
    ADD COLUMN loop_iteration_index bigint,
    ADD COLUMN child_execution_id bigint,
    ADD COLUMN issued_version bigint NOT NULL DEFAULT 0,
    ADD COLUMN terminal_event_id bigint;

CREATE TABLE noetl.stage (
    execution_id    bigint NOT NULL,
    stage_id        text COLLATE "C" NOT NULL,
    tenant_id       text NOT NULL,
    organization_id text NOT NULL,
    step            text NOT NULL,
    activation      bigint NOT NULL,
    loop_id         text NOT NULL,
    kind            text NOT NULL,
    status          text NOT NULL,
    total           bigint NOT NULL,
    max_in_flight   bigint NOT NULL,
    frame_count     bigint NOT NULL,
    frame_policy    json NOT NULL,
    engine          text,
    pool            text,
    dsl_ref         text,
    opened_event_id bigint,
    closed_event_id bigint,
    started_at      timestamptz,
    ended_at        timestamptz,
    stream_version  bigint NOT NULL,
    PRIMARY KEY (execution_id, stage_id)
) WITH (fillfactor = 70);
CREATE INDEX idx_stage_execution_step_loop ON noetl.stage (execution_id, step, loop_id);

CREATE TABLE noetl.frame (
    execution_id      bigint NOT NULL,
    frame_id          text COLLATE "C" NOT NULL,
    tenant_id         text NOT NULL,
    organization_id   text NOT NULL,
    stage_id          text NOT NULL,
    step              text NOT NULL,
    frame_index       bigint NOT NULL,
    parent_frame_id   text,
    status            text NOT NULL,
    cursor            json NOT NULL,
    row_count         bigint NOT NULL,
    attempts          bigint NOT NULL,
    -- Counts the events about the frame as well.
    aggregate_version bigint NOT NULL,
    owner_worker      text,
    lease_until       timestamptz,
    claimed_event_id  bigint,
    terminal_event_id bigint,
    output_ref        json,
    success           bigint,
    failed            bigint,
    breaks            bigint,
    created_at        timestamptz,
    started_at        timestamptz,
    completed_at      timestamptz,
    stream_version    bigint NOT NULL,
    PRIMARY KEY (execution_id, frame_id)
) WITH (fillfactor = 70);
CREATE INDEX frame_open_idx ON noetl.frame (execution_id, stage_id) WHERE terminal_event_id IS NULL;
CREATE INDEX idx_frame_stage_frame ON noetl.frame (stage_id, frame_index);

CREATE TABLE noetl.loop (
    execution_id    bigint NOT NULL,
    loop_id         text COLLATE "C" NOT NULL,
    tenant_id       text NOT NULL,
    organization_id text NOT NULL,
    step            text NOT NULL,
    activation      bigint NOT NULL,
    status          text NOT NULL,
    total           bigint NOT NULL,
    begun           bigint NOT NULL,
    success         bigint NOT NULL,
    failed          bigint NOT NULL,
    breaks          bigint NOT NULL,
    frame_count     bigint NOT NULL,
    started_version bigint NOT NULL,
    mode            text,
    max_in_flight   bigint,
    stage_id        text,
    collection_ref  json,
    first_error     json,
    done_event_id   bigint,
    stream_version  bigint NOT NULL,
    PRIMARY KEY (execution_id, loop_id)
) WITH (fillfactor = 70);

CREATE TABLE noetl.business_object (
    execution_id     bigint NOT NULL,
    object_type      text NOT NULL,
    object_id        text NOT NULL,
    object_key       text COLLATE "C" GENERATED ALWAYS AS (object_type || '/' || object_id) STORED,
    tenant_id        text NOT NULL,
    organization_id  text NOT NULL,
    status           text NOT NULL,
    version          bigint NOT NULL,
    attributes       json NOT NULL,
    deleted          boolean NOT NULL,
    created_event_id bigint NOT NULL,
    last_event_id    bigint NOT NULL,
    last_event_type  text NOT NULL,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    payload_refs     bigint NOT NULL,
    overflows        bigint NOT NULL,
    deleted_event_id bigint,
    payload_ref      json,
    derived_from     json,
    causation_id     text,
    correlation_id   text,
    producer         text,
    stream_version   bigint NOT NULL,
    PRIMARY KEY (execution_id, object_key)
) WITH (fillfactor = 70);
CREATE INDEX business_object_listing_idx
    ON noetl.business_object (tenant_id, organization_id, object_type, object_id);

GRANT SELECT, INSERT, UPDATE ON noetl.stage, noetl.frame, noetl.loop, noetl.business_object TO noetl_projector;
