-- What Fencepost stores for mode=named, schema 1: the locks themselves are in the server's memory.

-- One row for each connection that has acquired or waited for a lock. It counts only while the connection has the named lock
-- fp_s_SESSION. Its key is the fencing token.
CREATE TABLE IF NOT EXISTS {named_sessions} (
    id          BIGINT         NOT NULL AUTO_INCREMENT,
    connection  BIGINT UNSIGNED NOT NULL,          -- CONNECTION_ID()
    session     BINARY(16)     NOT NULL,
    lock_key    VARBINARY(256) NOT NULL,           -- the name for GET_LOCK
    name        VARBINARY(512) NOT NULL,
    granted     TINYINT        NOT NULL,           -- 0 while it waits
    since_us    BIGINT         NOT NULL,
    ttl_ms      BIGINT         NOT NULL,
    label       BLOB           NOT NULL,
    meta        MEDIUMBLOB     NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary ROW_FORMAT = DYNAMIC;

-- Created last: if it has its row, the other one exists.
CREATE TABLE IF NOT EXISTS {named_storage} (
    id          TINYINT        NOT NULL,
    format      BIGINT         NOT NULL,
    storage_id  BINARY(16)     NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary ROW_FORMAT = DYNAMIC;
