-- Columns ending in _ns are nanoseconds on the clock that `clock` names (a boot of a host, and a time namespace);
-- since_ms is the wall clock, for display. `mode` is 0 for exclusive, -1 for shared, n for a semaphore of n permits.

CREATE TABLE storage (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    storage_id  BLOB    NOT NULL,
    last        INTEGER NOT NULL,  -- the last token or queue position that was assigned
    reserved    INTEGER NOT NULL,  -- none above this is assigned before this is raised on disk
    boot        INTEGER NOT NULL,  -- the boot in which `last` is known to be correct
    swept_ns    INTEGER NOT NULL   -- when expired rows were last removed
);

CREATE TABLE holders (
    name      TEXT    NOT NULL,
    owner     BLOB    NOT NULL,
    token     INTEGER NOT NULL,
    mode      INTEGER NOT NULL,
    ttl_ns    INTEGER NOT NULL,
    until_ns  INTEGER NOT NULL,
    clock     INTEGER NOT NULL,
    since_ms  INTEGER NOT NULL,
    client    INTEGER NOT NULL,
    names     TEXT,                -- all names of the grant, one per line, if there are several
    chosen    INTEGER NOT NULL,
    label     TEXT    NOT NULL,
    meta      TEXT    NOT NULL,
    PRIMARY KEY (name, owner)
) WITHOUT ROWID;

CREATE TABLE tickets (
    name      TEXT    NOT NULL,
    seq       INTEGER NOT NULL,
    owner     BLOB    NOT NULL,
    ttl_ns    INTEGER NOT NULL,
    until_ns  INTEGER NOT NULL,
    clock     INTEGER NOT NULL,
    since_ms  INTEGER NOT NULL,
    client    INTEGER NOT NULL,
    rule      INTEGER NOT NULL,    -- 0: all of the wants, 1: any
    wants     TEXT    NOT NULL,    -- mode and name, one per line
    label     TEXT    NOT NULL,
    meta      TEXT    NOT NULL,
    PRIMARY KEY (name, seq)
) WITHOUT ROWID;

CREATE TABLE cells (
    name      TEXT    PRIMARY KEY,
    token     INTEGER NOT NULL,
    keep      INTEGER NOT NULL,    -- 0: while held, 1: for keep_ns, 2: always
    keep_ns   INTEGER NOT NULL,
    until_ns  INTEGER NOT NULL,
    clock     INTEGER NOT NULL,
    bytes     BLOB    NOT NULL     -- last column, so that a sweep does not read it
) WITHOUT ROWID;

-- For each lease of another clock: its deadline on this clock, a full lease after it was first seen in its current state.
CREATE TABLE sightings (
    clock     INTEGER NOT NULL,
    thing     BLOB    NOT NULL,
    stamp_ns  INTEGER NOT NULL,
    until_ns  INTEGER NOT NULL,
    PRIMARY KEY (clock, thing)
) WITHOUT ROWID;
