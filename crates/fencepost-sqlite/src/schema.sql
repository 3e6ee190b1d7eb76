-- Times ending in _ns are nanoseconds on the clock that `clock` names (a boot of a machine and its time namespace);
-- since_ms is the wall clock, for people. `mode` is 0 for exclusive, -1 for shared, n for n slots.

CREATE TABLE storage (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    storage_id  BLOB    NOT NULL,
    last        INTEGER NOT NULL,  -- the last token or place that was handed out
    reserved    INTEGER NOT NULL,  -- none above this is handed out before this is raised on disk
    boot        INTEGER NOT NULL,  -- the boot in which `last` is known to be right
    swept_ns    INTEGER NOT NULL   -- when somebody last swept what has ended
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
    names     TEXT,                -- all names of the grant, a line each, if there are several
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
    wants     TEXT    NOT NULL,    -- mode and name, a line each
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
    bytes     BLOB    NOT NULL     -- last, so that a sweep need not read through it
) WITHOUT ROWID;

-- When a lease of another clock was first seen in its present state, and until when it is waited for on ours.
CREATE TABLE sightings (
    clock     INTEGER NOT NULL,
    thing     BLOB    NOT NULL,
    stamp_ns  INTEGER NOT NULL,
    until_ns  INTEGER NOT NULL,
    PRIMARY KEY (clock, thing)
) WITHOUT ROWID;
