//! `fencepost rights`: what an account needs on the storage, for whoever grants it. Nothing is connected to.

use fencepost::Result;

use super::printed;
use crate::args::Rights;
use crate::exit::Exit;
use crate::{backend, output};

pub(crate) fn rights(args: &Rights) -> Result<Exit> {
    let chosen = backend::chosen(args.storage.url.as_deref())?;
    printed(output::results(fencepost::rights(chosen.url)?))
}
