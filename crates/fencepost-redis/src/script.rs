//! The Lua scripts that servers run.

use std::sync::LazyLock;

use crate::layout::Layout;

/// The script with the numbers 000 to 999 inserted, from which it cuts digits instead of formatting them.
static EXECUTE: LazyLock<String> = LazyLock::new(|| {
    let numbers = (0..1000).map(|number| format!("{number:03}")).collect::<Vec<_>>().concat();
    include_str!("scripts/execute.lua").replace("@NUMBERS@", &numbers)
});
const INSPECT: &str = include_str!("scripts/inspect.lua");
const EXECUTE_DIALECT: &str = include_str!("scripts/dialect.lua");
const INSPECT_DIALECT: &str = include_str!("scripts/inspect_dialect.lua");

/// A script, in the variant for the client's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    Execute,
    Inspect,
}

impl Script {
    /// All scripts.
    pub(crate) const ALL: [Self; 2] = [Self::Execute, Self::Inspect];

    /// Returns the text of the script for this layout.
    pub(crate) fn text(self, layout: &Layout) -> &'static str {
        match (self, &layout.dialect) {
            (Self::Execute, None) => &EXECUTE,
            (Self::Execute, Some(_)) => EXECUTE_DIALECT,
            (Self::Inspect, None) => INSPECT,
            (Self::Inspect, Some(_)) => INSPECT_DIALECT,
        }
    }
}
