//! `fencepost rights`: the rights that an account needs on the backend. Opens no connection.

use fencepost::Result;

use super::printed;
use crate::args::Rights;
use crate::exit::Exit;
use crate::secrets::location;
use crate::{backend, json, output};

pub(crate) fn rights(args: &Rights) -> Result<Exit> {
    let url = backend::chosen(args.backend.url.as_deref())?.url;
    let rights = fencepost::rights(&url)?;
    if args.json {
        let rights = json::Rights { url: &location(&url), rights: &rights };
        return printed(output::results(json::line(&rights) + "\n"));
    }
    printed(output::results(rights))
}
