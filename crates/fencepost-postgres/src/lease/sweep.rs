//! Removes all expired and unused rows. Flights remove a few, in the background.

use fencepost_core::Result;
use fencepost_sql::codec;
use tokio_postgres::types::Type;

use crate::config::quoted;
use crate::error::call_failed;
use crate::lease::reply::unexpected;
use crate::lease::state::ClientState;

/// How many names one call reads.
const PAGE: i32 = 512;

/// Removes all expired and unused rows. Returns how many names are gone.
pub(crate) async fn all(state: &ClientState) -> Result<u64> {
    // Sessions of flights do not wait for long.
    let connection = state.pool.link.open(None).await?;
    // The function does nothing while another client sweeps, which has locked this row: waits for it. The argument that depends
    // on the row makes the server call the function after that.
    let sql = "WITH s AS MATERIALIZED (SELECT id FROM @.storage FOR NO KEY UPDATE) \
        SELECT w.next, w.removed FROM s, LATERAL @.sweep($1, CASE s.id WHEN 1 THEN $2 END) AS w";
    let sql = sql.replace("@.", &format!("{}.", quoted(&state.namespace)));
    let (mut after, mut removed) = (String::new(), 0);
    loop {
        let swept = connection.query_typed(&sql, &[(&PAGE, Type::INT4), (&after, Type::TEXT)]).await;
        let rows = swept.map_err(|error| call_failed(&state.location, &error))?;
        let row = rows.first().ok_or_else(|| unexpected(&state.location))?;
        removed += codec::unsigned(row.get(1));
        after = row.get(0);
        if after.is_empty() {
            return Ok(removed);
        }
    }
}
