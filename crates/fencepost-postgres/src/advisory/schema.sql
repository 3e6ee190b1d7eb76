-- What mode=advisory stores: the order of its fencing tokens, and what sessions say about the locks that they hold or wait for.
-- The locks themselves are in the server's memory.

CREATE SCHEMA IF NOT EXISTS @schema@;

CREATE TABLE @schema@.advisory_storage (
    id          integer PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    version     bigint  NOT NULL,
    storage_id  text    NOT NULL
);

CREATE SEQUENCE @schema@.advisory_tokens;

-- One row for each session, until another session has its process id. It counts only while the session holds or awaits the
-- lock in `pg_locks`. Unlogged: sessions do not outlive the server either.
CREATE UNLOGGED TABLE @schema@.advisory_sessions (
    pid         integer PRIMARY KEY,
    classid     oid NOT NULL,
    objid       oid NOT NULL,
    objsubid    smallint NOT NULL,
    name        text COLLATE "C" NOT NULL,
    owner       text NOT NULL,
    token       bigint,              -- NULL while it waits
    since       timestamptz NOT NULL,
    ttl_ms      bigint NOT NULL,
    label       text NOT NULL,
    meta        text NOT NULL,
    broken      boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- Returns a token that is larger than all before. The caller holds the lock that it is for. The sequence follows the server's
-- clock, so that a restored database does not repeat tokens; if the clock was set back, it counts on.
CREATE FUNCTION @schema@.advisory_token() RETURNS bigint LANGUAGE plpgsql SET search_path = @schema@, pg_temp AS $$
DECLARE
    base bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    token bigint := nextval('advisory_tokens');
BEGIN
    -- Raised by whole seconds only, and by one session at a time: a value that others have just taken is not given again.
    IF token < base - 1000000 THEN
        PERFORM FROM advisory_storage FOR UPDATE;
        IF (SELECT s.last_value < base - 1000000 FROM advisory_tokens AS s) THEN
            PERFORM setval('advisory_tokens', base);
        END IF;
        token := nextval('advisory_tokens');
    END IF;
    RETURN token;
END $$;

-- Acquires an advisory lock for this session: `single`, or the pair of `first` and `second`. Codes: 1 acquired, 2 not free,
-- 3 in use under the name `other`. If it is not free and the session will wait, it is shown as a waiter.
CREATE FUNCTION @schema@.advisory_try(shared boolean, single bigint, first integer, second integer, waits boolean,
    lock_name text, new_owner text, new_ttl_ms bigint, new_label text, new_meta text,
    OUT code integer, OUT token bigint, OUT other text)
LANGUAGE plpgsql SET search_path = @schema@, pg_temp AS $$
DECLARE
    key record;
    is_free boolean;
BEGIN
    PERFORM set_config('idle_session_timeout', new_ttl_ms::text, false);
    SELECT * INTO key FROM advisory_key(single, first, second);
    is_free := CASE
        WHEN single IS NULL AND shared THEN pg_try_advisory_lock_shared(first, second)
        WHEN single IS NULL THEN pg_try_advisory_lock(first, second)
        WHEN shared THEN pg_try_advisory_lock_shared(single)
        ELSE pg_try_advisory_lock(single)
    END;
    IF is_free THEN
        code := 1;
        token := advisory_token();
    ELSE
        SELECT s.name INTO other FROM advisory_sessions AS s
            JOIN pg_locks AS l ON l.pid = s.pid AND l.locktype = 'advisory'
                AND (l.classid, l.objid, l.objsubid) = (s.classid, s.objid, s.objsubid)
            WHERE (s.classid, s.objid, s.objsubid) = (key.classid, key.objid, key.objsubid) AND s.name <> lock_name LIMIT 1;
        code := CASE WHEN other IS NULL THEN 2 ELSE 3 END;
        IF other IS NOT NULL OR NOT waits THEN
            RETURN;
        END IF;
    END IF;
    INSERT INTO advisory_sessions AS s VALUES (pg_backend_pid(), key.classid, key.objid, key.objsubid, lock_name, new_owner,
            token, clock_timestamp(), new_ttl_ms, new_label, new_meta)
        ON CONFLICT (pid) DO UPDATE SET classid = excluded.classid, objid = excluded.objid, objsubid = excluded.objsubid,
            name = excluded.name, owner = excluded.owner, token = excluded.token, since = excluded.since,
            ttl_ms = excluded.ttl_ms, label = excluded.label, meta = excluded.meta, broken = false;
END $$;

-- Waits for the lock, and returns the token. If the session holds it already, because the lock was granted just when the wait
-- was given up, it returns at once.
CREATE FUNCTION @schema@.advisory_wait(shared boolean, single bigint, first integer, second integer, wait_ms bigint)
RETURNS bigint LANGUAGE plpgsql SET search_path = @schema@, pg_temp AS $$
DECLARE
    granted bigint;
BEGIN
    PERFORM set_config('lock_timeout', wait_ms::text, true);
    IF single IS NULL AND shared THEN
        PERFORM pg_advisory_lock_shared(first, second);
    ELSIF single IS NULL THEN
        PERFORM pg_advisory_lock(first, second);
    ELSIF shared THEN
        PERFORM pg_advisory_lock_shared(single);
    ELSE
        PERFORM pg_advisory_lock(single);
    END IF;
    granted := advisory_token();
    UPDATE advisory_sessions AS s SET token = granted, since = clock_timestamp() WHERE s.pid = pg_backend_pid();
    RETURN granted;
END $$;

-- Returns the columns of `pg_locks` for a key.
CREATE FUNCTION @schema@.advisory_key(single bigint, first integer, second integer, OUT classid oid, OUT objid oid,
    OUT objsubid smallint) LANGUAGE sql IMMUTABLE AS $$
    SELECT ((CASE WHEN single IS NULL THEN first::bigint ELSE single >> 32 END) & 4294967295)::oid,
        (coalesce(single, second::bigint) & 4294967295)::oid, (CASE WHEN single IS NULL THEN 2 ELSE 1 END)::smallint
$$;

INSERT INTO @schema@.advisory_storage (version, storage_id) VALUES (@version@, '@storage_id@');
REVOKE ALL ON FUNCTION @schema@.advisory_token(), @schema@.advisory_key(bigint, integer, integer),
    @schema@.advisory_wait(boolean, bigint, integer, integer, bigint),
    @schema@.advisory_try(boolean, bigint, integer, integer, boolean, text, text, bigint, text, text) FROM PUBLIC;
