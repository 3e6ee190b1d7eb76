//! The scripts that servers run.

use std::sync::LazyLock;

use crate::layout::Layout;

/// With the numbers from 000 to 999 where it cuts them out.
static EXECUTE: LazyLock<String> = LazyLock::new(|| {
    let numbers = (0..1000).map(|number| format!("{number:03}")).collect::<Vec<_>>().concat();
    include_str!("scripts/execute.lua").replace("@NUMBERS@", &numbers)
});
const INSPECT: &str = include_str!("scripts/inspect.lua");
const DIALECT: &str = include_str!("scripts/dialect.lua");
const PEEK: &str = include_str!("scripts/peek.lua");

/// Which script to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    Execute,
    Inspect,
}

impl Script {
    /// Those of a server that decides about locks by itself.
    pub(crate) const ALL: [Self; 2] = [Self::Execute, Self::Inspect];

    /// Returns the text of the script for locks of this form.
    pub(crate) fn text(self, layout: &Layout) -> &'static str {
        match (self, &layout.dialect) {
            (Self::Execute, None) => &EXECUTE,
            (Self::Execute, Some(_)) => DIALECT,
            (Self::Inspect, None) => INSPECT,
            (Self::Inspect, Some(_)) => PEEK,
        }
    }
}
