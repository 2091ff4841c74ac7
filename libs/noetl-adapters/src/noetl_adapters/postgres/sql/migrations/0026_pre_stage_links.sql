-- Which stage a reduce reads, and names under which queries of playbooks know columns of stages and frames.

ALTER TABLE noetl.stage
    ADD COLUMN parent_stage_id text,
    ADD COLUMN step_name text GENERATED ALWAYS AS (step) STORED,
    ADD COLUMN loop_event_id text GENERATED ALWAYS AS (loop_id) STORED;

ALTER TABLE noetl.frame
    ADD COLUMN events_emitted bigint GENERATED ALWAYS AS (aggregate_version) STORED;
