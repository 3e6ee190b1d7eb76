-- The locks of one namespace, which is this schema. All times are the server's: clock_timestamp() after the rows of the names
-- were locked. `mode` is 0 for exclusive, -1 for shared, n for a semaphore of n permits.

CREATE TABLE storage (
    id          integer PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    version     integer NOT NULL,
    storage_id  uuid    NOT NULL,
    floor       bigint  NOT NULL     -- no token that was granted for a deleted row of `locks` is larger
);

-- One row for each name in use, and for some time after. Its row lock is the mutex of the lock: each function that reads or
-- writes anything about a name holds it. Updates change no indexed column, so that they need no vacuum (HOT).
CREATE TABLE locks (
    name        text COLLATE "C" PRIMARY KEY,
    token       bigint NOT NULL,     -- the last token that was granted, in any mode
    owner       uuid,                -- the exclusive holder
    expires_at  timestamptz NOT NULL,-- when the lease of the exclusive holder ends; without one, when the lock was last used
    ttl_ms      bigint,
    client      bigint,
    since       timestamptz,
    chosen      integer,
    wants       text,                -- mode and name of all wants of the grant, one per line, if there are several
    label       text,
    meta        text,
    left_until  timestamptz,         -- when the last tombstone of an owner that wanted it expires
    is_plain    boolean NOT NULL DEFAULT true   -- there is nothing else about this name but cells that outlive their grants
) WITH (fillfactor = 50);

-- Holders that are not exclusive.
CREATE TABLE holders (
    name        text COLLATE "C" NOT NULL,
    owner       uuid NOT NULL,
    token       bigint NOT NULL,
    mode        integer NOT NULL,
    expires_at  timestamptz NOT NULL,
    ttl_ms      bigint NOT NULL,
    client      bigint NOT NULL,
    since       timestamptz NOT NULL,
    chosen      integer NOT NULL,
    wants       text,
    label       text NOT NULL,
    meta        text NOT NULL,
    PRIMARY KEY (name, owner)
) WITH (fillfactor = 70);

-- The queues. An attempt for several names has a row, with the same position, in the queue of each.
CREATE TABLE tickets (
    name        text COLLATE "C" NOT NULL,
    seq         bigint NOT NULL,     -- the position: smaller is earlier, in all queues
    owner       uuid NOT NULL,
    mode        integer NOT NULL,
    wants       text,                -- mode and name, one per line, if the attempt has several names
    any_of      boolean NOT NULL,    -- whether it needs one of them or all
    expires_at  timestamptz NOT NULL,
    ttl_ms      bigint NOT NULL,
    client      bigint NOT NULL,
    since       timestamptz NOT NULL,
    label       text NOT NULL,
    meta        text NOT NULL,
    PRIMARY KEY (name, seq, owner)
) WITH (fillfactor = 70);
CREATE INDEX tickets_owner ON tickets (owner);
CREATE SEQUENCE positions;

-- The largest token that `lock_in` has returned. A sequence, because a rollback does not set it back.
CREATE SEQUENCE lock_in_tokens;

-- Owners that have left before their acquire arrived: it must not be applied.
CREATE TABLE tombstones (
    owner       uuid PRIMARY KEY,
    expires_at  timestamptz NOT NULL
);
CREATE INDEX tombstones_expires_at ON tombstones (expires_at);

CREATE TABLE cells (
    name        text COLLATE "C" PRIMARY KEY,
    token       bigint NOT NULL,     -- of the grant that wrote it
    keep        integer NOT NULL,    -- 0: while held, 1: for keep_ms, 2: always
    keep_ms     bigint NOT NULL,
    expires_at  timestamptz NOT NULL,
    bytes       bytea NOT NULL
);

-- A row that a flight returns: the number of the operation, from 1, or 0 for a push; and the reply (see reply.rs).
CREATE TYPE reply AS (op integer, code integer, token bigint, number bigint, note text, bytes bytea);

-- The outcome of an operation, and the pushes for waiters of any client.
CREATE TYPE outcome AS (code integer, token bigint, number bigint, note text, bytes bytea, pushes text[]);

-- What an owner holds of some names: on how many of them, with which token, and which one it chose.
CREATE TYPE holding AS (count bigint, token bigint, chosen integer);
