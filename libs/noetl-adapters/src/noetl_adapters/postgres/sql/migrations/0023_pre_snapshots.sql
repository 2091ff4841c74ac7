-- Snapshots of replays: where the next replay of an execution may begin. Nothing else is ever read from them.
--
-- They are made from the log and can be dropped at any time. What is said of one is sealed by its checksum; a replay
-- begins with it only if the rules it was made by are its own and its last event is the log's.

CREATE TABLE noetl.projection_snapshot (
    execution_id       bigint NOT NULL,
    stream_version     bigint NOT NULL,
    tenant_id          text NOT NULL,
    organization_id    text NOT NULL,
    event_id           bigint NOT NULL,
    event_checksum     text NOT NULL,
    reached_at         timestamptz NOT NULL,
    code_version       text NOT NULL,
    upcasters          text NOT NULL,
    row_format         integer NOT NULL,
    state_format       integer NOT NULL,
    payload_root       text NOT NULL,
    encryption_context json NOT NULL,
    surfaces           json NOT NULL,
    row_counts         json NOT NULL,
    parts              integer NOT NULL,
    body_sha256        text NOT NULL,
    checksum           text NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (execution_id, stream_version)
);

CREATE TABLE noetl.projection_snapshot_part (
    execution_id   bigint NOT NULL,
    stream_version bigint NOT NULL,
    part           integer NOT NULL,
    body           bytea NOT NULL,
    PRIMARY KEY (execution_id, stream_version, part),
    FOREIGN KEY (execution_id, stream_version) REFERENCES noetl.projection_snapshot ON DELETE CASCADE
);
-- Parts are packed already.
ALTER TABLE noetl.projection_snapshot_part ALTER COLUMN body SET STORAGE EXTERNAL;

GRANT SELECT, INSERT, DELETE ON noetl.projection_snapshot, noetl.projection_snapshot_part TO noetl_projector;
