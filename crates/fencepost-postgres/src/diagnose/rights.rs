//! The rights of the account on what is in the schema.

use fencepost_core::{Finding, Result};

use super::{Server, Storage};
use crate::config::literal;

/// What is missing of the rights that `fencepost rights` prints. `mode=advisory` has tables, a sequence and functions of its own in
/// the same schema; `@like` selects those of one mode.
const MISSING: &str = "
WITH n AS (SELECT oid FROM pg_namespace WHERE nspname = @literal),
needed(permission, is_granted) AS (
    SELECT 'USAGE on the schema', has_schema_privilege(n.oid, 'USAGE') FROM n
    UNION ALL
    SELECT p.word || ' on ' || c.relname, has_table_privilege(c.oid, p.word)
        FROM n JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'r',
            unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p(word)
        WHERE c.relname @like 'advisory%' AND (c.relname NOT LIKE '%storage' OR p.word IN ('SELECT', 'UPDATE'))
    UNION ALL
    SELECT p.word || ' on ' || c.relname, CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(c.oid, p.word) END
        FROM n JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'S', unnest(@sequence) AS p(word)
        WHERE c.relname @like 'advisory%' AND (c.relname <> 'positions' OR p.word = 'USAGE')
    UNION ALL
    SELECT 'EXECUTE on ' || f.proname, has_function_privilege(f.oid, 'EXECUTE')
        FROM n JOIN pg_proc AS f ON f.pronamespace = n.oid AND f.proname @like 'advisory%'
)
SELECT permission FROM needed WHERE NOT is_granted ORDER BY permission";

impl Server<'_> {
    /// Checks the rights on the schema of this namespace.
    pub(crate) async fn rights(&self, namespace: &str) -> Finding {
        let (like, sequence) = match self.storage {
            Storage::Tables { .. } => ("NOT LIKE", "ARRAY['USAGE', 'UPDATE']"),
            // The value is read, too, when it is raised to the server's time.
            Storage::Sessions { .. } => ("LIKE", "ARRAY['USAGE', 'SELECT', 'UPDATE']"),
        };
        let sql = MISSING.replace("@like", like).replace("@sequence", sequence);
        let missing = self.missing(&sql.replace("@literal", &literal(namespace))).await;
        Finding::from_result("rights", missing.map(|missing| finding(&missing)))
    }

    async fn missing(&self, sql: &str) -> Result<Vec<String>> {
        Ok(self.rows(sql).await?.iter().filter_map(|row| row.try_get(0).ok()).collect())
    }
}

fn finding(missing: &[String]) -> Finding {
    if missing.is_empty() {
        return Finding::ok("rights", "all that locks need");
    }
    Finding::problem("rights", format!("missing: {}", missing.join(", ")))
        .with_advice("`fencepost rights` prints the statements that grant them")
}
