//! The statements of this prototype.

use fencepost_sql::{holder_columns, ticket_columns};

/// Locks and reads; the row of a lock has its exclusive holder.
pub(super) const LOCK: &str = concat!(
    "SELECT ",
    holder_columns!(),
    ", last_token FROM trial_locks WHERE name = ANY ($1) ORDER BY name FOR NO KEY UPDATE"
);
pub(super) const CREATE: &str =
    "INSERT INTO trial_locks (name) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING";
/// The first waiters of each lock, and the time, read after the rows are locked.
pub(super) const WAITERS: &str = "SELECT t.*, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM unnest($1::text[]) AS n(name)
    LEFT JOIN LATERAL (SELECT * FROM trial_tickets AS q WHERE q.name = n.name ORDER BY q.seq LIMIT $2) AS t ON true";
pub(super) const OWN: &str =
    concat!("SELECT ", ticket_columns!(), " FROM trial_tickets WHERE owner = ANY ($1)");
pub(super) const HOLD: &str = "UPDATE trial_locks AS l SET owner = h.owner, token = h.token, last_token = h.token, mode = 0, ttl_ns = h.ttl,
    until_ns = h.until, since_ms = h.since, client = h.client, chosen = 0, label = h.label, meta = h.meta
    FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[],
        $9::text[]) AS h(name, owner, token, ttl, until, since, client, label, meta) WHERE l.name = h.name";
pub(super) const FREE: &str = "UPDATE trial_locks SET owner = NULL WHERE name = ANY ($1)";
pub(super) const LEAVE: &str =
    "DELETE FROM trial_tickets AS t USING unnest($1::text[], $2::bigint[]) AS k(name, seq)
    WHERE t.name = k.name AND t.seq = k.seq";
pub(super) const JOIN: &str = concat!(
    "INSERT INTO trial_tickets (",
    ticket_columns!(),
    ") SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], ",
    "$8::bigint[], $9::text[], $10::text[], $11::text[]) ",
    "ON CONFLICT (name, seq) DO UPDATE SET until_ns = excluded.until_ns, client = excluded.client"
);

pub(super) const TABLES: &str = "CREATE TABLE IF NOT EXISTS trial_locks (name text COLLATE \"C\" PRIMARY KEY, last_token bigint NOT NULL DEFAULT 0,
        owner bytea, token bigint, mode bigint, ttl_ns bigint, until_ns bigint, since_ms bigint, client bigint, names text,
        chosen bigint, label text, meta text) WITH (fillfactor = 50);
    CREATE TABLE IF NOT EXISTS trial_tickets (name text COLLATE \"C\" NOT NULL, seq bigint NOT NULL, owner bytea NOT NULL,
        ttl_ns bigint NOT NULL, until_ns bigint NOT NULL, since_ms bigint NOT NULL, client bigint NOT NULL, rule bigint NOT NULL,
        wants text NOT NULL, label text NOT NULL, meta text NOT NULL, PRIMARY KEY (name, seq)) WITH (fillfactor = 70);
    CREATE INDEX IF NOT EXISTS trial_tickets_owner ON trial_tickets (owner)";
/// As in the functions of the shipped backend.
pub(super) const SETUP: &str =
    "SET plan_cache_mode = force_generic_plan; SET jit = off; SET enable_seqscan = off;
    SET enable_hashjoin = off; SET enable_mergejoin = off; SET synchronous_commit = on";
