//! `fencepost schema`: the statements that create the tables of a database. Opens no connection.

use fencepost::Result;

use super::printed;
use crate::args::Schema;
use crate::exit::Exit;
use crate::secrets::location;
use crate::{backend, json, output};

pub(crate) fn schema(args: &Schema) -> Result<Exit> {
    let url = match args.database {
        Some(database) => url_of(database.scheme(), args.namespace.as_deref()),
        None => backend::chosen(args.backend.url.as_deref())?.url,
    };
    let schema = fencepost::schema(&url)?;
    if args.json {
        let schema = json::Schema { url: &location(&url), schema: &schema };
        return printed(output::results(json::line(&schema) + "\n"));
    }
    printed(output::results(schema))
}

/// Returns a URL with this namespace. Only scheme and namespace matter: the schema does not depend on the server.
fn url_of(scheme: &str, namespace: Option<&str>) -> String {
    let encode = |byte: u8| {
        if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    let option = namespace.map(|name| format!("?namespace={}", name.bytes().map(encode).collect::<String>()));
    format!("{scheme}://USER@HOST/DATABASE{}", option.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_cannot_add_an_option() {
        assert_eq!(url_of("postgres", None), "postgres://USER@HOST/DATABASE");
        let hostile = url_of("postgres", Some("a&mode=advisory"));
        assert_eq!(hostile, "postgres://USER@HOST/DATABASE?namespace=a%26mode%3Dadvisory");
    }
}
