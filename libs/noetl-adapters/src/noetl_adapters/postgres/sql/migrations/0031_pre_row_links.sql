-- Links between rows, and all that is known of a row beside its fields, under the names of the requirements.
--
-- ADR 0081 says which requirement is found where. Values that another column has are computed from that one; nothing
-- that is in a history already becomes another row.

ALTER TABLE noetl.stage
    -- The event that the stage was opened for.
    ADD COLUMN parent_event_id bigint;

ALTER TABLE noetl.command
    -- Of an internal command: the stage that its answer opens, or whose step it leads on from.
    ADD COLUMN stage_id text,
    ADD COLUMN frame_id text;
COMMENT ON COLUMN noetl.command.frame_id IS
    'Always null: a frame is claimed by itself, and no command runs for it. frame.command_id names its attempt.';
CREATE INDEX idx_command_stage_worker_slot ON noetl.command (execution_id, stage_id) WHERE stage_id IS NOT NULL;

-- Slot and sequence are cut out of the text of a cursor, of whose names they are among the last: names of tasks stand
-- before them, and may hold an escaped zero, which PostgreSQL's functions for JSON refuse. It also costs a tenth.
ALTER TABLE noetl.frame
    -- The attempt, as its worker, its logs and children that its rows have started know it.
    ADD COLUMN command_id text COLLATE "C" GENERATED ALWAYS AS (
        CASE WHEN attempts > 0 THEN frame_id || '/' || attempts::text END
    ) STORED,
    ADD COLUMN worker_slot_id bigint GENERATED ALWAYS AS (
        CASE WHEN attempts > 0 THEN split_part(split_part(cursor::text, '"slot":', -1), ',', 1)::bigint END
    ) STORED,
    ADD COLUMN slot_sequence bigint GENERATED ALWAYS AS (
        CASE WHEN attempts > 0 THEN split_part(split_part(cursor::text, '"sequence":', -1), ',', 1)::bigint END
    ) STORED;
CREATE INDEX idx_frame_command ON noetl.frame (command_id) WHERE command_id IS NOT NULL;
-- What the log has as the key frame/<stage>/<slot>/<sequence> of the event that hands the frame out.
CREATE UNIQUE INDEX uidx_frame_claim_key ON noetl.frame (stage_id, worker_slot_id, slot_sequence)
    WHERE worker_slot_id IS NOT NULL;

ALTER TABLE noetl.loop
    ADD COLUMN epoch_id text GENERATED ALWAYS AS (loop_id) STORED,
    ADD COLUMN done bigint GENERATED ALWAYS AS (success + failed) STORED,
    ADD COLUMN completed boolean GENERATED ALWAYS AS (status <> 'running') STORED,
    ADD COLUMN total_shards bigint GENERATED ALWAYS AS (CASE WHEN mode = 'fanout' THEN total END) STORED;

-- The epoch of an event, by whichever of its names it is told. Computed when it is read, as in 0028.
DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 180000 THEN
        EXECUTE $columns$
            ALTER TABLE noetl.event
                ADD COLUMN loop_epoch_id text GENERATED ALWAYS AS (coalesce(epoch_id, loop_id)) VIRTUAL
        $columns$;
    END IF;
END $$;

-- Values as canonical JSON (RFC 8785) spells them; what is absent or empty is left out of rows, and null here.
CREATE FUNCTION noetl.spelt(value text) RETURNS text LANGUAGE sql STABLE
    RETURN to_json(nullif(value, ''))::text;
CREATE FUNCTION noetl.spelt(value timestamptz) RETURNS text LANGUAGE sql STABLE
    RETURN '"' || to_char(value AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"';

-- One line for each row of each surface: whose it is, of which events it is made, and its checksum. Nothing of it is
-- stored: the checksum is that of the row's canonical JSON, which counts for the checksum of its surface (ADR 0044).
CREATE VIEW noetl.projection AS
SELECT
    made.tenant_id,
    made.organization_id,
    made.execution_id,
    made.surface,
    made.row_key,
    made.stream_version AS version,
    made.from_version,
    made.stream_version AS to_version,
    (SELECT event.event_id FROM noetl.event
     WHERE event.execution_id = made.execution_id AND event.stream_version = made.from_version) AS from_event_id,
    (SELECT event.event_id FROM noetl.event
     WHERE event.execution_id = made.execution_id AND event.stream_version = made.stream_version) AS to_event_id,
    encode(sha256(convert_to('{' || made.fields || '}', 'UTF8')), 'hex') AS checksum,
    -- Of the execution: a batch writes all rows that it changes at once.
    whole.stream_version AS event_count,
    whole.last_projected_event_id AS source_event_id,
    whole.event_time_watermark,
    whole.projected_at,
    (extract(epoch FROM whole.projected_at - whole.event_time_watermark) * 1000)::double precision AS projection_lag_ms
FROM (
    SELECT tenant_id, organization_id, execution_id, 'execution' AS surface, execution_id::text AS row_key,
        1::bigint AS from_version, stream_version,
        concat_ws(',',
        '"catalog_id":' || noetl.spelt(catalog_id),
        '"end_time":' || noetl.spelt(end_time),
        '"error":' || error::text,
        '"event_time_watermark":' || noetl.spelt(event_time_watermark),
        '"execution_id":' || noetl.spelt(execution_id::text),
        '"last_event_id":' || noetl.spelt(last_projected_event_id::text),
        '"last_event_type":' || noetl.spelt(last_event_type),
        '"last_node_name":' || noetl.spelt(last_node_name),
        '"organization_id":' || noetl.spelt(organization_id),
        '"parent_execution_id":' || noetl.spelt(parent_execution_id::text),
        '"path":' || noetl.spelt(path),
        '"start_time":' || noetl.spelt(start_time),
        '"state":{' || coalesce(told.facts, '') || '}',
        '"status":' || noetl.spelt(status),
        '"stream_version":' || stream_version::text,
        '"tenant_id":' || noetl.spelt(tenant_id),
        '"unknown_events":' || coalesce(told.unknown_events, '0'),
        '"version":' || version::text) AS fields
    FROM noetl.execution
    -- An escaped zero cannot be read; the private characters stand for it meanwhile.
    CROSS JOIN LATERAL (
        SELECT string_agg(to_json(key)::text || ':' || replace(value::text, '\uE000\uE001\uE000', '\u0000'), ','
                   ORDER BY key COLLATE "C") FILTER (WHERE key IN (
            'answered', 'arrivals', 'cascades', 'children', 'deadline', 'depth', 'failed_chunk',
            'failure', 'held', 'inherited', 'parent_call', 'pauses', 'redrive_of', 'redriven_rows',
            'released', 'steps', 'streams', 'trace', 'variable_refs', 'variables', 'workload')) AS facts,
            max(value::text) FILTER (WHERE key = 'unknown_events') AS unknown_events
        FROM json_each(replace(state::text, '\u0000', '\uE000\uE001\uE000')::json)
    ) AS told
    UNION ALL
    SELECT tenant_id, organization_id, execution_id, 'stages', stage_id,
        (SELECT event.stream_version FROM noetl.event
         WHERE event.execution_id = stage.execution_id AND event.event_id = stage.opened_event_id), stream_version,
        concat_ws(',',
        '"activation":' || activation::text,
        '"closed_event_id":' || noetl.spelt(closed_event_id::text),
        '"dsl_ref":' || noetl.spelt(dsl_ref),
        '"ended_at":' || noetl.spelt(ended_at),
        '"engine":' || noetl.spelt(engine),
        '"execution_id":' || noetl.spelt(execution_id::text),
        '"frame_count":' || frame_count::text,
        '"frame_policy":' || frame_policy::text,
        '"kind":' || noetl.spelt(kind),
        '"loop_id":' || noetl.spelt(loop_id),
        '"max_in_flight":' || max_in_flight::text,
        '"opened_event_id":' || noetl.spelt(opened_event_id::text),
        '"parent_event_id":' || noetl.spelt(parent_event_id::text),
        '"parent_stage_id":' || noetl.spelt(parent_stage_id),
        '"pool":' || noetl.spelt(pool),
        '"stage_id":' || noetl.spelt(stage_id),
        '"started_at":' || noetl.spelt(started_at),
        '"status":' || noetl.spelt(status),
        '"step":' || noetl.spelt(step),
        '"stream_version":' || stream_version::text,
        '"total":' || total::text)
    FROM noetl.stage
    UNION ALL
    SELECT tenant_id, organization_id, execution_id, 'frames', frame_id,
        (SELECT min(event.stream_version) FROM noetl.event
         WHERE event.execution_id = frame.execution_id AND event.frame_id = frame.frame_id), stream_version,
        concat_ws(',',
        '"aggregate_version":' || aggregate_version::text,
        '"attempts":' || attempts::text,
        '"breaks":' || breaks::text,
        '"claimed_event_id":' || noetl.spelt(claimed_event_id::text),
        '"completed_at":' || noetl.spelt(completed_at),
        '"created_at":' || noetl.spelt(created_at),
        '"cursor":' || cursor::text,
        '"execution_id":' || noetl.spelt(execution_id::text),
        '"failed":' || failed::text,
        '"frame_id":' || noetl.spelt(frame_id),
        '"frame_index":' || frame_index::text,
        '"lease_until":' || noetl.spelt(lease_until),
        '"output_ref":' || output_ref::text,
        '"owner_worker":' || noetl.spelt(owner_worker),
        '"parent_frame_id":' || noetl.spelt(parent_frame_id),
        '"row_count":' || row_count::text,
        '"stage_id":' || noetl.spelt(stage_id),
        '"started_at":' || noetl.spelt(started_at),
        '"status":' || noetl.spelt(status),
        '"step":' || noetl.spelt(step),
        '"stream_version":' || stream_version::text,
        '"success":' || success::text,
        '"terminal_event_id":' || noetl.spelt(terminal_event_id::text))
    FROM noetl.frame
    UNION ALL
    SELECT tenant_id, organization_id, execution_id, 'commands', command_id,
        issued_version, stream_version,
        concat_ws(',',
        '"activation":' || activation::text,
        '"aggregate_version":' || aggregate_version::text,
        '"attempt":' || attempt::text,
        '"cause_step":' || noetl.spelt(cause_step),
        '"child_execution_id":' || noetl.spelt(child_execution_id::text),
        '"command_id":' || noetl.spelt(command_id),
        '"deadline":' || noetl.spelt(deadline),
        '"ended_at":' || noetl.spelt(ended_at),
        '"execution_id":' || noetl.spelt(execution_id::text),
        '"internal":' || internal::text,
        '"issued_at":' || noetl.spelt(issued_at),
        '"issued_version":' || issued_version::text,
        '"lease_until":' || noetl.spelt(lease_until),
        '"loop_id":' || noetl.spelt(loop_id),
        '"loop_iteration_index":' || loop_iteration_index::text,
        '"pool":' || noetl.spelt(pool),
        '"stage_id":' || noetl.spelt(stage_id),
        '"status":' || noetl.spelt(status),
        '"step":' || noetl.spelt(step),
        '"stream_version":' || stream_version::text,
        '"terminal_event_id":' || noetl.spelt(terminal_event_id::text),
        '"trace":' || noetl.spelt(trace),
        '"worker_id":' || noetl.spelt(worker_id))
    FROM noetl.command
    UNION ALL
    SELECT tenant_id, organization_id, execution_id, 'business_objects', object_key,
        (SELECT event.stream_version FROM noetl.event
         WHERE event.execution_id = business_object.execution_id
           AND event.event_id = business_object.created_event_id), stream_version,
        concat_ws(',',
        '"attributes":' || attributes::text,
        '"causation_id":' || noetl.spelt(causation_id),
        '"correlation_id":' || noetl.spelt(correlation_id),
        '"created_at":' || noetl.spelt(created_at),
        '"created_event_id":' || noetl.spelt(created_event_id::text),
        '"deleted":' || deleted::text,
        '"deleted_event_id":' || noetl.spelt(deleted_event_id::text),
        '"derived_from":' || derived_from::text,
        '"execution_id":' || noetl.spelt(execution_id::text),
        '"last_event_id":' || noetl.spelt(last_event_id::text),
        '"last_event_type":' || noetl.spelt(last_event_type),
        '"object_id":' || noetl.spelt(object_id),
        '"object_type":' || noetl.spelt(object_type),
        '"overflows":' || overflows::text,
        '"payload_ref":' || payload_ref::text,
        '"payload_refs":' || payload_refs::text,
        '"producer":' || noetl.spelt(producer),
        '"status":' || noetl.spelt(status),
        '"stream_version":' || stream_version::text,
        '"updated_at":' || noetl.spelt(updated_at),
        '"version":' || version::text)
    FROM noetl.business_object
    UNION ALL
    SELECT tenant_id, organization_id, execution_id, 'loops', loop_id,
        started_version, stream_version,
        concat_ws(',',
        '"activation":' || activation::text,
        '"begun":' || begun::text,
        '"breaks":' || breaks::text,
        '"collection_ref":' || collection_ref::text,
        '"done_event_id":' || noetl.spelt(done_event_id::text),
        '"execution_id":' || noetl.spelt(execution_id::text),
        '"failed":' || failed::text,
        '"first_error":' || first_error::text,
        '"frame_count":' || frame_count::text,
        '"loop_id":' || noetl.spelt(loop_id),
        '"max_in_flight":' || max_in_flight::text,
        '"mode":' || noetl.spelt(mode),
        '"stage_id":' || noetl.spelt(stage_id),
        '"started_version":' || started_version::text,
        '"status":' || noetl.spelt(status),
        '"step":' || noetl.spelt(step),
        '"stream_version":' || stream_version::text,
        '"success":' || success::text,
        '"total":' || total::text)
    FROM noetl.loop
) AS made
JOIN noetl.execution AS whole USING (execution_id);

GRANT SELECT ON noetl.projection TO noetl_projector;
