//! A parser for the part of TOML that our own manifests use: tables, their keys, and the text of each value.

/// One `key = value` of a manifest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) table: String,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) line: usize,
}

/// Whether a dependency is for users or for tests only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Dev,
}

/// A dependency, by the name of its package.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) kind: Kind,
    pub(crate) package: String,
    pub(crate) line: usize,
}

/// Returns every entry in the order of the text; the key of a dotted one (`a.workspace = true`) is its first part.
pub(crate) fn entries(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let (mut table, mut depth) = (String::new(), 0);
    for (number, line) in
        text.lines().enumerate().map(|(index, line)| (index + 1, without_comment(line).trim()))
    {
        if depth > 0 {
            depth += opened(line);
        } else if line.starts_with('[') {
            line.trim_matches(['[', ']']).trim().clone_into(&mut table);
        } else if let Some((key, value)) = line.split_once('=') {
            depth = opened(value);
            let key = key.split('.').next().unwrap_or(key).trim().trim_matches('"').to_owned();
            entries.push(Entry { table: table.clone(), key, value: value.trim().to_owned(), line: number });
        }
    }
    entries
}

/// Returns the keys of one table.
pub(crate) fn keys(text: &str, table: &str) -> Vec<String> {
    entries(text).into_iter().filter(|entry| entry.table == table).map(|entry| entry.key).collect()
}

/// Returns every dependency: plain, of a target, for tests, for the build script; renamed ones by their real name.
pub(crate) fn dependencies(text: &str) -> Vec<Dependency> {
    let mut found: Vec<Dependency> = entries(text).iter().filter_map(dependency).collect();
    found.dedup_by(|later, first| (later.kind, &later.package) == (first.kind, &first.package));
    found
}

fn dependency(entry: &Entry) -> Option<Dependency> {
    let (kind, own_table) = kind_of(&entry.table)?;
    let renamed = entry.value.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
    let package = renamed.or(own_table).unwrap_or(&entry.key).to_owned();
    Some(Dependency { kind, package, line: entry.line })
}

/// Returns the kind of a dependency table; with the name for a table of its own, such as `[dependencies.tokio]`.
fn kind_of(table: &str) -> Option<(Kind, Option<&str>)> {
    let (before, own) = match table.rsplit_once("dependencies.") {
        Some((before, name)) => (before, Some(name)),
        None => (table.strip_suffix("dependencies")?, None),
    };
    match before.rsplit('.').next()? {
        "" | "build-" if !before.starts_with("workspace") => Some((Kind::Normal, own)),
        "dev-" => Some((Kind::Dev, own)),
        _ => None,
    }
}

fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    let end = line.find(|c| {
        quoted ^= c == '"';
        c == '#' && !quoted
    });
    &line[..end.unwrap_or(line.len())]
}

/// Returns how many brackets the text opens and does not close; negative if it closes more.
fn opened(text: &str) -> i32 {
    let mut quoted = false;
    text.chars().fold(0, |depth, c| {
        quoted ^= c == '"';
        match c {
            '[' | '{' if !quoted => depth + 1,
            ']' | '}' if !quoted => depth - 1,
            _ => depth,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(Kind, String, usize)> {
        dependencies(text).into_iter().map(|found| (found.kind, found.package, found.line)).collect()
    }

    #[test]
    fn dependencies_are_found_in_every_spelling() {
        let text = "[dependencies]\na.workspace = true\nb = { version = \"1\", features = [\n  \"x\", # = y\n] }\n\
                    new = { package = \"old\", version = \"1\" }\n[target.'cfg(unix)'.dependencies]\nc = \"1\"\n\
                    [dev-dependencies]\nd = \"1\"\n[dependencies.e]\nversion = \"1\"\noptional = true\n";
        let expected = [("a", 2), ("b", 3), ("old", 6), ("c", 8), ("d", 10), ("e", 12)]
            .map(|(name, line)| (name.to_owned(), line));
        assert_eq!(found(text).into_iter().map(|(_, name, line)| (name, line)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn dependencies_for_tests_are_told_apart() {
        let text = "[build-dependencies]\na = \"1\"\n[dev-dependencies]\nb = \"1\"\n[target.x.dev-dependencies.c]\npath = \"c\"\n";
        let kinds: Vec<_> = found(text).into_iter().map(|(kind, ..)| kind).collect();
        assert_eq!(kinds, [Kind::Normal, Kind::Dev, Kind::Dev]);
    }

    #[test]
    fn shared_versions_of_the_workspace_are_no_dependencies() {
        assert_eq!(found("[workspace.dependencies]\na = \"1\"\n[package]\nname = \"x\"\n"), []);
    }

    #[test]
    fn features_are_the_keys_of_their_table() {
        let text =
            "[features]\ndefault = [\n  \"a\",\n]\na = [\"dep:x\"] # a = b\n\n[lints]\nworkspace = true\n";
        assert_eq!(keys(text, "features"), ["default", "a"]);
    }
}
