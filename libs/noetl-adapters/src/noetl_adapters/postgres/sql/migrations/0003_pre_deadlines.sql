-- When the execution, or something in it, will have taken too long; of those that ended or may take for ever, nothing.

ALTER TABLE noetl.execution ADD COLUMN next_deadline timestamptz;
CREATE INDEX execution_deadline_idx ON noetl.execution (next_deadline, execution_id) WHERE next_deadline IS NOT NULL;
