//! A small writer of SVG text. Colours and fonts come from the page's style sheet by class, so
//! that charts follow light and dark.

use std::fmt::Write;

/// An SVG image under construction; coordinates are in units of its view box.
pub(super) struct Svg {
    text: String,
}

impl Svg {
    /// An empty image of `width` by `height`; `label` says what it shows to a screen reader.
    pub fn new(width: f64, height: f64, label: &str) -> Self {
        let label = escape(label);
        let text =
            format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{label}\">\n");
        Self { text }
    }

    /// A straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    /// A bar that grows to the right from a square base to a slightly rounded end, with a tooltip.
    pub fn bar(&mut self, class: &str, at: (f64, f64), width: f64, height: f64, tip: &str) {
        let (x, y) = at;
        let radius = 3.0_f64.min(width);
        let (straight, side) = (width - radius, height - 2.0 * radius);
        let tip = escape(tip);
        self.add(format_args!(
            "<path class=\"{class}\" d=\"M{x:.1} {y:.1}h{straight:.1}a{radius:.1} {radius:.1} 0 0 1 \
             {radius:.1} {radius:.1}v{side:.1}a{radius:.1} {radius:.1} 0 0 1 -{radius:.1} \
             {radius:.1}h-{straight:.1}z\"><title>{tip}</title></path>"
        ));
    }

    /// A line through points, with a tooltip.
    pub fn polyline(&mut self, class: &str, points: &[(f64, f64)], tip: &str) {
        let mut list = String::new();
        for (x, y) in points {
            // Writing to a string cannot fail.
            let _ = write!(list, "{x:.1},{y:.1} ");
        }
        let (list, tip) = (list.trim_end(), escape(tip));
        self.add(format_args!(
            "<polyline class=\"{class}\" points=\"{list}\"><title>{tip}</title></polyline>"
        ));
    }

    /// A small disc at a point, with a tooltip.
    pub fn dot(&mut self, class: &str, at: (f64, f64), tip: &str) {
        let ((x, y), tip) = (at, escape(tip));
        self.add(format_args!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"><title>{tip}</title></circle>"
        ));
    }

    /// A rectangle from its upper left corner, with a tooltip.
    pub fn rect(&mut self, class: &str, at: (f64, f64), width: f64, height: f64, tip: &str) {
        let ((x, y), tip) = (at, escape(tip));
        self.add(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\"><title>{tip}</title></rect>"
        ));
    }

    /// Text whose `anchor` (`start`, `middle` or `end`) stands at a point of its base line.
    pub fn text(&mut self, class: &str, anchor: &str, at: (f64, f64), text: &str) {
        let ((x, y), text) = (at, escape(text));
        self.add(format_args!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
        ));
    }

    /// The finished image.
    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>");
        self.text
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{element}");
    }
}

/// Text with the characters that mean something to XML replaced.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_wherever_it_goes() {
        let mut svg = Svg::new(10.0, 10.0, "a \"b\"");
        svg.text("t", "start", (1.0, 2.0), "<&>");
        svg.bar("c", (0.0, 0.0), 5.0, 8.0, "<tip>");
        svg.polyline("c", &[(0.0, 1.0), (2.0, 3.25)], "a&b");
        let text = svg.finish();
        for part in [
            "a &quot;b&quot;",
            ">&lt;&amp;&gt;</text>",
            "&lt;tip&gt;",
            "a&amp;b",
            "0.0,1.0 2.0,3.2",
        ] {
            assert!(text.contains(part), "{part} missing in {text}");
        }
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>"));
    }
}
