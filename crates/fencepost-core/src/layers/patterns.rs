//! Maps lock names to label values by patterns, which bounds the number of values.

/// The label value of a name that matches no pattern.
const OTHER: &str = "other";

/// Patterns in order. The group of a name is the index of the first that it matches; the last group is [`OTHER`].
#[derive(Debug)]
pub(super) struct Patterns(Vec<String>);

impl Patterns {
    pub(super) fn new(patterns: &[String]) -> Self {
        Self(patterns.to_vec())
    }

    /// Returns the group of this name.
    pub(super) fn group(&self, name: &str) -> usize {
        self.0.iter().position(|pattern| matches(pattern, name)).unwrap_or(self.0.len())
    }

    /// Returns the label of each group; without patterns there is one group without a label.
    pub(super) fn labels(&self) -> impl Iterator<Item = Option<String>> {
        let other = (!self.0.is_empty()).then(|| OTHER.to_owned());
        self.0.iter().cloned().map(Some).chain([other])
    }
}

/// Returns whether the name matches the pattern, in which `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(head) else {
        return false;
    };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        // The earliest match leaves the most for the parts that follow.
        let Some(at) = name.find(part) else {
            return false;
        };
        name = &name[at + part.len()..];
    }
    name.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        let cases = [
            ("order:*", "order:42", true),
            ("order:*", "order:", true),
            ("order:*", "orders", false),
            ("*", "anything at all", true),
            ("exact", "exact", true),
            ("exact", "exactly", false),
            ("*/daily", "report/daily", true),
            ("*/daily", "report/daily/2", false),
            ("a*b*c", "a--b--c", true),
            ("a*b*c", "a--c--b", false),
            ("a*bb*b", "abb", false),
            ("a*a", "a", false),
            ("ä*🔒", "äö🔒", true),
            ("**", "x", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern, name), expected, "{pattern:?} and {name:?}");
        }
    }

    #[test]
    fn the_first_pattern_that_matches_counts() {
        let patterns = Patterns::new(&["order:*".into(), "order:vip:*".into()]);
        assert_eq!(patterns.group("order:vip:1"), 0);
        assert_eq!(patterns.group("invoice"), 2);
        let labels: Vec<_> = patterns.labels().map(Option::unwrap).collect();
        assert_eq!(labels, ["order:*", "order:vip:*", "other"]);
    }

    #[test]
    fn without_patterns_nothing_is_labelled() {
        let patterns = Patterns::new(&[]);
        assert_eq!(patterns.labels().collect::<Vec<_>>(), [None]);
        assert_eq!(patterns.group("anything"), 0);
    }
}
