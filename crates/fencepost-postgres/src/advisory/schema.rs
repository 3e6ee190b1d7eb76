//! Creates what mode=advisory stores, on first use, or prints the statements that do.

use fencepost_core::{Error, ErrorKind, Result, StorageId};
use fencepost_net::storage_id;
use tokio_postgres::Client;

use crate::config::{Config, quoted};
use crate::error::{call_failed, is_without_schema};
use crate::link::Link;

/// The version of the schema; a client rejects every other one.
const VERSION: u64 = 1;

/// Returns the statements that create it.
fn statements(namespace: &str) -> String {
    include_str!("schema.sql")
        .replace("@schema@", &quoted(namespace))
        .replace("@version@", &VERSION.to_string())
        .replace("@storage_id@", &StorageId::random().to_string())
}

/// Reads the storage id. Creates the schema if it does not exist, unless the client connects to an existing one only.
pub(super) async fn read_or_create(link: &Link, client: &Client, only_existing: bool) -> Result<StorageId> {
    if let Some(id) = read(link, client).await? {
        return Ok(id);
    }
    if only_existing {
        let message = format!("{} has no schema for mode=advisory", link.location());
        return Err(Error::new(ErrorKind::Missing, message)
            .with_hint("the first client that acquires a lock creates it"));
    }
    create(link, client).await?;
    let missing = || {
        let message = format!("the schema that was created in {} does not exist", link.location());
        Error::new(ErrorKind::Backend, message)
    };
    read(link, client).await?.ok_or_else(missing)
}

async fn read(link: &Link, client: &Client) -> Result<Option<StorageId>> {
    let schema = quoted(&link.config().namespace);
    let query = format!("SELECT version, storage_id FROM {schema}.advisory_storage");
    let row = match client.query_typed_opt(&query, &[]).await {
        Err(error) if is_without_schema(&error) => return Ok(None),
        outcome => outcome.map_err(|error| call_failed(link.location(), &error))?,
    };
    let version = row.as_ref().and_then(|row| u64::try_from(row.get::<_, i64>(0)).ok());
    let id = row.as_ref().map(|row| row.get::<_, &str>(1));
    storage_id(link.location(), (version, id), VERSION, "another namespace: ?namespace=NAME").map(Some)
}

/// Returns the statement that creates the schema if it does not exist. Of several clients that execute it at once one creates it,
/// and the others wait for it.
fn creating(namespace: &str) -> String {
    // Constant for a namespace, and quoted as a literal: the namespace has no quotes.
    let alone =
        format!("PERFORM pg_advisory_xact_lock(hashtextextended('fencepost schema {namespace}', 0));");
    let exists = format!("{}.advisory_storage", quoted(namespace));
    format!(
        "DO $create$ BEGIN {alone} IF to_regclass('{exists}') IS NULL THEN \
         EXECUTE $statements${}$statements$; END IF; END $create$",
        statements(namespace)
    )
}

/// Returns the statements for an administrator, with a comment.
pub(crate) fn printed(config: &Config) -> String {
    format!(
        "-- What mode=advisory of Fencepost stores in the schema {}, version {VERSION}, for PostgreSQL 14 or newer.\n\
         -- Run it in psql, as an account that may create schemas in the database; the account owns it. It does nothing if\n\
         -- it exists. `fencepost rights` prints the grants for accounts that use the locks.\n{};\n",
        quoted(&config.namespace),
        creating(&config.namespace)
    )
}

async fn create(link: &Link, client: &Client) -> Result<()> {
    let transaction = creating(&link.config().namespace);
    match client.batch_execute(&transaction).await {
        // Another program has created the schema at the same time.
        Err(error) if error.code().is_some_and(|code| ["23505", "42P06", "42P07"].contains(&code.code())) => {
            client.batch_execute(&transaction).await
        }
        outcome => outcome,
    }
    .map_err(|error| call_failed(link.location(), &error).context("could not create the schema"))
}
