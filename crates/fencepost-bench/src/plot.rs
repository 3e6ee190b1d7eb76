//! Bar plots as SVG, in panels below each other; readable on a light and on a dark page.

use std::fmt::Write;

/// One panel: bars from left to right on a scale of its own.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    /// The unit of the scale, such as `pairs per second`.
    pub(crate) unit: &'static str,
    /// `longer is better`, or the contrary.
    pub(crate) better: &'static str,
    pub(crate) bars: Vec<Bar>,
}

#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    pub(crate) kind: Kind,
}

/// The colour of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    Peer,
    /// A floor: no lock at all.
    Floor,
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 180.0;
const RIGHT: f64 = 84.0;
const BAR: f64 = 18.0;
const STEP: f64 = 26.0;
/// Above the bars of a panel: its title; below: the scale and its unit.
const ABOVE: f64 = 52.0;
const BELOW: f64 = 52.0;
/// Below all panels: the legend.
const LEGEND: f64 = 34.0;

const STYLE: &str = "\
  .page { fill: #ffffff } .text { fill: #1f2328 } .quiet { fill: #59636e } .grid { stroke: #d1d9e0 }\n\
  .ours { fill: #1a7f64 } .peer { fill: #8c959f } .floor { fill: #c8d1da }\n\
  text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; font-size: 12px }\n\
  .title { font-size: 14px; font-weight: 600 } .strong { font-weight: 600 }\n\
  @media (prefers-color-scheme: dark) {\n\
    .page { fill: #0d1117 } .text { fill: #f0f6fc } .quiet { fill: #9198a1 } .grid { stroke: #30363d }\n\
    .ours { fill: #3fb68b } .peer { fill: #6e7681 } .floor { fill: #3d444d }\n\
  }\n";

/// Draws the panels.
pub(crate) fn svg(label: &str, panels: &[Panel]) -> String {
    let height = panels.iter().map(Panel::height).sum::<f64>() + LEGEND;
    let mut drawing = Drawing(String::new());
    drawing.line(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{}\">",
        escaped(label)
    ));
    drawing.line(format_args!("<style>\n{STYLE}</style>"));
    drawing.line(format_args!("<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>"));
    let mut top = 0.0;
    for panel in panels {
        drawing.panel(panel, top);
        top += panel.height();
    }
    drawing.legend(top);
    drawing.line(format_args!("</svg>"));
    drawing.0
}

impl Panel {
    fn height(&self) -> f64 {
        ABOVE + self.depth() + BELOW
    }

    /// Returns how far down the bars reach.
    fn depth(&self) -> f64 {
        self.bars.iter().fold(0.0, |depth, _| depth + STEP)
    }
}

struct Drawing(String);

impl Drawing {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes everything");
    }

    fn text(&mut self, (x, y): (f64, f64), class: &str, anchor: &str, text: &str) {
        let text = escaped(text);
        self.line(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    fn legend(&mut self, top: f64) {
        let mut x = LEFT;
        for (kind, meaning) in [
            (Kind::Ours, "Fencepost: fenced, fair"),
            (Kind::Peer, "other locks"),
            (Kind::Floor, "no lock: a floor"),
        ] {
            let (class, y) = (kind.classes().0, top + 4.0);
            self.line(format_args!(
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" rx=\"2\"/>"
            ));
            self.text((x + 18.0, y + 10.0), "quiet", "start", meaning);
            x += 180.0;
        }
    }

    fn panel(&mut self, panel: &Panel, top: f64) {
        self.text((16.0, top + 30.0), "text title", "start", &panel.title);
        self.text((WIDTH - 16.0, top + 30.0), "quiet", "end", panel.better);
        let largest = panel.bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
        let ticks = ticks(largest);
        let end = ticks.last().copied().unwrap_or(1.0);
        let across = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value / end);
        let (first, last) = (top + ABOVE - 6.0, top + ABOVE + panel.depth());
        for tick in &ticks {
            let x = across(*tick);
            self.line(format_args!(
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{first:.1}\" x2=\"{x:.1}\" y2=\"{last:.1}\"/>"
            ));
            self.text((x, last + 16.0), "quiet", "middle", &shown(*tick));
        }
        self.text((f64::midpoint(across(0.0), across(end)), last + 34.0), "quiet", "middle", panel.unit);
        let mut y = top + ABOVE;
        for bar in &panel.bars {
            let (class, weight) = bar.kind.classes();
            let width = (across(bar.value) - LEFT).max(1.0);
            self.line(format_args!(
                "<rect class=\"{class}\" x=\"{LEFT:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\"/>"
            ));
            self.text((LEFT - 10.0, y + 13.0), weight, "end", &bar.label);
            self.text((LEFT + width + 6.0, y + 13.0), weight, "start", &shown(bar.value));
            y += STEP;
        }
    }
}

impl Kind {
    fn classes(self) -> (&'static str, &'static str) {
        match self {
            Self::Ours => ("ours", "text strong"),
            Self::Peer => ("peer", "text"),
            Self::Floor => ("floor", "quiet"),
        }
    }
}

/// Returns round numbers from 0 to at least the largest value: four to seven of them.
fn ticks(largest: f64) -> Vec<f64> {
    if largest <= 0.0 {
        return vec![0.0, 1.0];
    }
    let power = 10_f64.powf((largest / 5.0).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| largest / step <= 5.0).unwrap_or(largest);
    let mut ticks = vec![0.0];
    for count in 1..=10 {
        ticks.push(step * f64::from(count));
        if step * f64::from(count) >= largest {
            break;
        }
    }
    ticks
}

/// Formats a number for people: three significant digits, and separated thousands.
pub(crate) fn shown(value: f64) -> String {
    match value {
        _ if value >= 999.5 => thousands(&format!("{value:.0}")),
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => trimmed(&format!("{value:.1}")),
        _ if value >= 0.9995 => trimmed(&format!("{value:.2}")),
        _ => trimmed(&format!("{value:.3}")),
    }
}

fn trimmed(number: &str) -> String {
    number.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn thousands(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(values: &[f64]) -> Panel {
        let bars = values.iter().map(|value| Bar { label: "a <b>".into(), value: *value, kind: Kind::Ours });
        Panel { title: "t & u".into(), unit: "ms", better: "shorter is better", bars: bars.collect() }
    }

    #[test]
    fn numbers_are_short_and_readable() {
        let shown: Vec<String> =
            [0.0, 0.0314, 0.9784, 1.4, 20.0, 20.04, 117.4, 1_000.0, 117_000.4].map(shown).to_vec();
        assert_eq!(shown, ["0", "0.031", "0.978", "1.4", "20", "20", "117", "1,000", "117,000"]);
    }

    #[test]
    fn a_scale_has_round_numbers_and_reaches_the_largest_value() {
        assert_eq!(ticks(5.0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(ticks(117_000.0), [0.0, 25_000.0, 50_000.0, 75_000.0, 100_000.0, 125_000.0]);
        for largest in [0.003, 0.97, 7.0, 64.0, 2_600.0, 999_999.0] {
            let ticks = ticks(largest);
            assert!(ticks.last().is_some_and(|last| *last >= largest), "{largest}");
            assert!((4..=7).contains(&ticks.len()), "{largest}: {ticks:?}");
        }
        assert_eq!(ticks(0.0), [0.0, 1.0]);
    }

    #[test]
    fn every_bar_stays_on_the_page_and_texts_are_escaped() {
        let drawn = svg("all", &[panel(&[3.0, 1.0]), panel(&[0.0])]);
        assert_eq!(drawn.matches("class=\"ours\"").count(), 3 + 1);
        assert!(drawn.contains("a &lt;b&gt;") && drawn.contains("t &amp; u") && !drawn.contains("<b>"));
        let widths = drawn.split("class=\"ours\"").skip(1).map(|rest| {
            rest.split("width=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next())
                .unwrap()
                .parse::<f64>()
                .unwrap()
        });
        assert!(widths.into_iter().all(|width| width >= 1.0 && LEFT + width <= WIDTH - RIGHT + 0.1));
    }
}
