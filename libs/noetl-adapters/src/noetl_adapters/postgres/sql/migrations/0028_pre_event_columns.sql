-- Playbooks may be granted SELECT on noetl.event, and know its fields by the names of their language.
--
-- The columns are computed when somebody reads them and stored nowhere, which PostgreSQL does from 18 on; an older
-- server lacks them, and nothing of NoETL itself reads them.

DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 180000 THEN
        EXECUTE $columns$
            ALTER TABLE noetl.event
                ADD COLUMN node_id text GENERATED ALWAYS AS (node_name) VIRTUAL,
                ADD COLUMN status text GENERATED ALWAYS AS (result ->> 'status') VIRTUAL,
                ADD COLUMN created_at timestamptz GENERATED ALWAYS AS (ingest_time) VIRTUAL,
                ADD COLUMN context jsonb GENERATED ALWAYS AS (
                    jsonb_strip_nulls(jsonb_object(ARRAY[
                        'command_id', command_id,
                        'stage_id', stage_id,
                        'frame_id', frame_id,
                        'loop_id', loop_id,
                        'loop_event_id', loop_id
                    ])) || coalesce(result -> 'context', '{}'::jsonb)
                ) VIRTUAL
        $columns$;
    END IF;
END $$;

-- As before; a partition has what the table computes too.
CREATE OR REPLACE FUNCTION noetl.ensure_event_partition(lower_id bigint, upper_id bigint) RETURNS boolean
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
    EXECUTE format(
        'CREATE TABLE noetl.%I (LIKE noetl.event INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED)',
        partition_name
    );
    EXECUTE format('ALTER TABLE noetl.event ATTACH PARTITION noetl.%I FOR VALUES FROM (%L) TO (%L)',
                   partition_name, lower_id, upper_id);
    RETURN true;
END $$;
