//! Every relative link in a Markdown file leads to a file or a folder of the repository.

use super::markdown;
use super::repo::{Complaint, Repo};

/// Checks the links of all Markdown files.
pub(crate) fn check(repo: &Repo) -> Vec<Complaint> {
    repo.ending(".md").flat_map(|(path, text)| broken(repo, path, text)).collect()
}

fn broken(repo: &Repo, path: &str, text: &str) -> Vec<Complaint> {
    let relative = markdown::links(text).into_iter().filter(|(_, target)| is_relative(target));
    let broken =
        relative.filter(|(_, target)| !resolved(path, target).is_some_and(|file| repo.exists(&file)));
    broken
        .map(|(line, target)| Complaint::new(path, line, format!("the link to `{target}` leads nowhere")))
        .collect()
}

fn is_relative(target: &str) -> bool {
    !target.contains("://") && !target.starts_with("mailto:") && !target.starts_with('#')
}

/// Returns the path from the root that a link leads to; nothing if it leaves the repository.
fn resolved(from: &str, target: &str) -> Option<String> {
    let target = target.split(['#', '?']).next().unwrap_or(target);
    let folder =
        if target.starts_with('/') { "" } else { from.rsplit_once('/').map_or("", |(folder, _)| folder) };
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_resolved_from_their_file() {
        assert_eq!(resolved("docs/a/b.md", "../c.md#x").as_deref(), Some("docs/c.md"));
        assert_eq!(resolved("README.md", "./docs/").as_deref(), Some("docs"));
        assert_eq!(resolved("docs/a.md", "/LICENSE").as_deref(), Some("LICENSE"));
        assert_eq!(resolved("docs/a.md", "../../x"), None);
    }

    #[test]
    fn a_link_to_nothing_is_refused() {
        let text = "[good](b.md) [web](https://example.org/x.md) [here](#x)\n[bad](c.md)\n";
        let complaints = check(&Repo::of([("docs/a.md", text), ("docs/b.md", "")]));
        assert_eq!(complaints, [Complaint::new("docs/a.md", 2, "the link to `c.md` leads nowhere")]);
    }
}
