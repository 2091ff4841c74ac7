-- Workers report to api, as replicas with shards do: who is there, and how much it can take.

ALTER TABLE noetl.runtime
    ADD COLUMN capacity jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN heard_at timestamptz NOT NULL DEFAULT now();
