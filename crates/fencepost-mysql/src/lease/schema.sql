-- Locks of Fencepost, schema 1. Names and texts are UTF-8 as bytes, so that none is folded, padded or converted.
-- Columns ending in _ns are nanoseconds since 1970 on the server's clock; since_ms is shown, and decides nothing.
-- `mode` is 0 for exclusive, -1 for shared, n for a semaphore of n permits.

-- The row of a lock is its mutex: a transaction that decides about the lock has it locked. It exists while the lock is in use.
CREATE TABLE IF NOT EXISTS {locks} (
    name      VARBINARY(512) NOT NULL,
    is_plain  TINYINT        NOT NULL DEFAULT 0,  -- 1 if nothing is stored about the lock but one holder
    version   BIGINT         NOT NULL DEFAULT 0,  -- counts changes in a Galera cluster, where they would not conflict otherwise
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS {holders} (
    name      VARBINARY(512) NOT NULL,
    owner     BINARY(16)     NOT NULL,
    token     BIGINT         NOT NULL,
    mode      BIGINT         NOT NULL,
    ttl_ns    BIGINT         NOT NULL,
    until_ns  BIGINT         NOT NULL,
    since_ms  BIGINT         NOT NULL,
    client    BIGINT         NOT NULL,
    names     MEDIUMBLOB,                          -- all names of the grant, one per line, if there are several
    chosen    BIGINT         NOT NULL,
    label     BLOB           NOT NULL,
    meta      MEDIUMBLOB     NOT NULL,
    PRIMARY KEY (name, owner)
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS {tickets} (
    name      VARBINARY(512) NOT NULL,
    seq       BIGINT         NOT NULL,
    owner     BINARY(16)     NOT NULL,
    ttl_ns    BIGINT         NOT NULL,
    until_ns  BIGINT         NOT NULL,
    since_ms  BIGINT         NOT NULL,
    client    BIGINT         NOT NULL,
    rule      BIGINT         NOT NULL,             -- 0: all of the wants, 1: any
    wants     MEDIUMBLOB     NOT NULL,             -- mode and name, one per line
    label     BLOB           NOT NULL,
    meta      MEDIUMBLOB     NOT NULL,
    PRIMARY KEY (name, seq),
    KEY owner (owner)
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS {cells} (
    name      VARBINARY(512) NOT NULL,
    token     BIGINT         NOT NULL,
    keep      BIGINT         NOT NULL,             -- 0: while held, 1: for keep_ns, 2: always
    keep_ns   BIGINT         NOT NULL,
    until_ns  BIGINT         NOT NULL,
    bytes     MEDIUMBLOB     NOT NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary ROW_FORMAT = DYNAMIC;

-- Attempts that were given up: an acquire of theirs that arrives late does nothing.
CREATE TABLE IF NOT EXISTS {tombstones} (
    owner     BINARY(16)     NOT NULL,
    until_ns  BIGINT         NOT NULL,
    PRIMARY KEY (owner)
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary ROW_FORMAT = DYNAMIC;

-- What clients have to be told, until they have read it: a grant (with a token), or the loss of one.
CREATE TABLE IF NOT EXISTS {notices} (
    client    BIGINT         NOT NULL,
    owner     BINARY(16)     NOT NULL,
    token     BIGINT,
    ttl_ns    BIGINT         NOT NULL,
    chosen    BIGINT         NOT NULL,
    until_ns  BIGINT         NOT NULL,
    PRIMARY KEY (client, owner)
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary ROW_FORMAT = DYNAMIC;

-- The counter of its key numbers tokens and queue positions; all rows but the last thousand are removed from time to time.
CREATE TABLE IF NOT EXISTS {tokens} (
    id        BIGINT         NOT NULL AUTO_INCREMENT,
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary ROW_FORMAT = DYNAMIC;

-- Created last: if it has its row, all others exist.
CREATE TABLE IF NOT EXISTS {storage} (
    id          TINYINT      NOT NULL,
    format      BIGINT       NOT NULL,
    storage_id  BINARY(16)   NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary ROW_FORMAT = DYNAMIC;
