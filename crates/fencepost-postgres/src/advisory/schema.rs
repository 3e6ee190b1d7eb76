//! Creates what mode=advisory stores, on first use, or prints the statements that do.

use fencepost_core::{Error, ErrorKind, Result, StorageId};
use tokio_postgres::Client;

use crate::config::{Config, quoted};
use crate::error::call_failed;
use crate::lease::schema;
use crate::link::Link;

/// The version of the schema; a client rejects every other one.
const VERSION: u64 = 1;

/// The table with the version and the id.
const TABLE: &str = "advisory_storage";

/// Returns the statements that create it.
fn statements(namespace: &str) -> String {
    include_str!("schema.sql")
        .replace("@schema@", &quoted(namespace))
        .replace("@version@", &VERSION.to_string())
        .replace("@storage_id@", &StorageId::random().to_string())
}

/// Reads the storage id. Creates the schema if it does not exist, unless the client connects to an existing one only.
pub(super) async fn read_or_create(link: &Link, client: &Client, only_existing: bool) -> Result<StorageId> {
    if let Some(id) = schema::read(client, link.config(), TABLE, VERSION).await? {
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
    schema::read(client, link.config(), TABLE, VERSION).await?.ok_or_else(missing)
}

/// Returns the statement that creates the schema if it does not exist. Of several clients that execute it at once one creates it,
/// and the others wait for it.
fn creating(namespace: &str) -> String {
    // Constant for a namespace, and quoted as a literal: the namespace has no quotes.
    let alone =
        format!("PERFORM pg_advisory_xact_lock(hashtextextended('fencepost schema {namespace}', 0));");
    let exists = format!("{}.advisory_storage", quoted(namespace));
    format!(
        "DO $create$ BEGIN SET LOCAL search_path = pg_catalog, pg_temp; {alone} IF to_regclass('{exists}') IS NULL THEN \
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
    .map_err(|error| {
        if schema::is_taken(&error) {
            return schema::foreign(link.config());
        }
        call_failed(link.location(), &error).context("could not create the schema")
    })
}
