use super::axis::{Axis, short};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
/// Left, top, right and bottom of where the lines are.
const FRAME: (f64, f64, f64, f64) = (80.0, 60.0, 640.0, 350.0);

/// One line.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// Something to compare with.
    pub(super) dashed: bool,
}

/// Lines over two axes.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) x: (&'static str, Axis),
    pub(super) y: (&'static str, Axis),
    /// What stands at a tick of the first axis.
    pub(super) shown: fn(f64) -> String,
    pub(super) lines: Vec<Line>,
}

/// Colours that are told apart on light and dark, and without seeing red and green.
const STYLE: &str = "
      text { font-family: \"DejaVu Sans\", Verdana, sans-serif; font-size: 12px; fill: #1d2b39; }
      .title { font-size: 15px; font-weight: bold; }
      .paper { fill: #fbfcfd; }
      .frame { fill: none; stroke: #33475b; stroke-width: 1.2; }
      .grid { stroke: #9aabbc; stroke-width: 0.6; stroke-dasharray: 2 4; }
      .line { fill: none; stroke-width: 2.2; }
      .compared { stroke-dasharray: 6 4; }
      .c0 { stroke: #2f7d4f; } .c1 { stroke: #b3541e; } .c2 { stroke: #2a6fb0; } .c3 { stroke: #8a5a9e; }
      .c4 { stroke: #6b7785; } .c5 { stroke: #b08a1e; } .c6 { stroke: #1e8a93; } .c7 { stroke: #a33a5a; }
      @media (prefers-color-scheme: dark) {
        text { fill: #d7e0e9; } .paper { fill: #14202b; } .frame { stroke: #9aabbc; }
        .c0 { stroke: #6fc795; } .c1 { stroke: #e8956a; } .c2 { stroke: #7db6ea; } .c3 { stroke: #c79bd8; }
        .c4 { stroke: #aab6c2; } .c5 { stroke: #e0c060; } .c6 { stroke: #63c9d2; } .c7 { stroke: #e58aa6; }
      }";

impl Chart {
    pub(super) fn svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" role=\"img\" aria-labelledby=\"title\">\n  <title id=\"title\">{title}</title>\n  \
             <style>{STYLE}\n  </style>\n  <rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n  \
             <text class=\"title\" x=\"{left}\" y=\"32\">{title}</text>\n",
            title = escaped(self.title),
            left = FRAME.0,
        );
        self.grid(&mut svg);
        for (index, line) in self.lines.iter().enumerate() {
            self.line(&mut svg, index, line);
        }
        svg + "</svg>\n"
    }

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (left, top, right, bottom) = FRAME;
        let across = left + self.x.1.part(x) * (right - left);
        (across, bottom - self.y.1.part(y) * (bottom - top))
    }

    /// Writing into a text cannot fail.
    fn grid(&self, svg: &mut String) {
        let (left, top, right, bottom) = FRAME;
        for tick in self.y.1.ticks() {
            let (_, y) = self.place((0.0, tick));
            let (text, below) = (short(tick), y + 4.0);
            let _ = writeln!(
                svg,
                "  <line class=\"grid\" x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/><text x=\"{}\" y=\"{below:.1}\" text-anchor=\"end\">{text}</text>",
                left - 8.0
            );
        }
        for tick in self.x.1.ticks() {
            let (x, _) = self.place((tick, 0.0));
            let text = escaped(&(self.shown)(tick));
            let _ = writeln!(
                svg,
                "  <line class=\"grid\" x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
                bottom + 18.0
            );
        }
        let (width, height) = (right - left, bottom - top);
        let _ = writeln!(
            svg,
            "  <rect class=\"frame\" x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\"/>"
        );
        let _ =
            writeln!(svg, "  <text x=\"{left}\" y=\"{}\">{}</text>", top - 8.0, escaped(self.y.0));
        let _ = writeln!(
            svg,
            "  <text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            bottom + 40.0,
            escaped(self.x.0)
        );
    }

    fn line(&self, svg: &mut String, index: usize, line: &Line) {
        let sound = line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        let point = |point: &(f64, f64)| {
            let (x, y) = self.place(*point);
            format!("{x:.1},{y:.1}")
        };
        let points: Vec<String> = sound.map(point).collect();
        let class = format!("line c{}{}", index % 8, if line.dashed { " compared" } else { "" });
        let _ = writeln!(svg, "  <polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
        let (x, y) = (FRAME.2 + 16.0, FRAME.1 + 12.0 + index as f64 * 22.0);
        let _ = writeln!(
            svg,
            "  <line class=\"{class}\" x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\"/><text x=\"{}\" y=\"{}\">{}</text>",
            x + 24.0,
            x + 30.0,
            y + 4.0,
            escaped(&line.name)
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_lines_its_names_and_no_open_tag() {
        let line = |name: &str, dashed| Line {
            name: name.into(),
            points: vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 4.0)],
            dashed,
        };
        let chart = Chart {
            title: "rate < limit",
            x: ("seconds", Axis::linear([2.0].into_iter())),
            y: ("events/s", Axis::linear([4.0].into_iter())),
            shown: short,
            lines: vec![line("ours", false), line("theirs & others", true)],
        };
        let svg = chart.svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("theirs &amp; others") && svg.contains("rate &lt; limit"));
        assert!(svg.contains("compared") && !svg.contains("NaN"));
        let opened = svg.matches("<text").count();
        assert_eq!(opened, svg.matches("</text>").count());
    }
}
