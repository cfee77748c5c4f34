//! One self-contained HTML file about a comparison of policies.
//!
//! Settings, the table of results, charts and any further sections, in one file that needs no
//! network: styles are in the page, charts are inline SVG ([`charts`]), light and dark follow the
//! reader's system. No clock is read, so the same results give the same bytes.

pub mod charts;
pub mod lanes;
pub mod lines;
mod svg;

use std::path::Path;

use minijinja::{Environment, Value, context};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::results::{RunResult, table};

/// The page's template.
const TEMPLATE: &str = include_str!("report/template.html");

/// A policy's results, and the latencies behind them.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The row of the results file.
    pub result: RunResult,
    /// Latencies of its completed requests, in any order.
    pub latencies_ns: Vec<u64>,
}

/// What a further section holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Text shown as it is, in a fixed-width font: a timeline, a trace.
    Pre(String),
    /// Markup that goes in unescaped; the caller vouches for it.
    Html(String),
    /// A list of sentences.
    Lines(Vec<String>),
    /// Tables under their captions.
    Tables(Vec<Table>),
    /// Charts under one legend.
    Charts {
        /// What the colours mean.
        legend: Vec<charts::Swatch>,
        /// SVG, and whether it takes the whole width.
        charts: Vec<(String, bool)>,
    },
}

/// A table whose first column is a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Table {
    /// What it says and how to read it.
    pub caption: String,
    /// One per column.
    pub headings: Vec<String>,
    /// One cell per column.
    pub rows: Vec<Vec<String>>,
}

/// A report to be written.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Title of the page.
    pub title: String,
    /// The run's settings, as names and values, in the order shown.
    pub settings: Vec<(String, String)>,
    /// The runs; those of one model are drawn together, in this order.
    pub runs: Vec<RunReport>,
    /// Further sections, as headings and bodies, below the charts.
    pub sections: Vec<(String, Body)>,
}

/// The charts of one model, for the template.
#[derive(Serialize)]
struct ModelCharts {
    model: String,
    legend: Vec<charts::Swatch>,
    cdf: Value,
    bars: Vec<Value>,
}

impl Report {
    /// Renders the page and writes it to `path`.
    ///
    /// # Errors
    /// [`Error::Save`], or [`Error::Render`] for a broken template.
    pub fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.render()?).map_err(|e| Error::save(path, e))
    }

    /// The page's text.
    ///
    /// # Errors
    /// [`Error::Render`] for a broken template.
    pub fn render(&self) -> Result<String> {
        let mut environment = Environment::new();
        environment.set_keep_trailing_newline(true);
        environment.add_template("report.html", TEMPLATE)?;
        let results: Vec<RunResult> = self.runs.iter().map(|run| run.result.clone()).collect();
        let (headings, rows) = table::cells(&results);
        let sections = self.sections.iter().map(|(heading, body)| match body {
            Body::Pre(text) => context! { heading, text },
            Body::Html(html) => context! { heading, html => Value::from_safe_string(html.clone()) },
            Body::Lines(lines) => context! { heading, lines },
            Body::Tables(tables) => context! { heading, tables },
            Body::Charts { legend, charts } => {
                let safe = |(svg, wide): &(String, bool)| {
                    context! { svg => Value::from_safe_string(svg.clone()), wide }
                };
                context! { heading, legend, charts => charts.iter().map(safe).collect::<Vec<_>>() }
            }
        });
        let page = environment.get_template("report.html")?.render(context! {
            title => self.title,
            settings => self.settings,
            headings,
            rows,
            models => self.models(),
            sections => sections.collect::<Vec<_>>(),
        })?;
        Ok(page)
    }

    /// Charts by model, in order of first appearance. A policy has the same colour everywhere.
    fn models(&self) -> Vec<ModelCharts> {
        let mut policies: Vec<&str> = Vec::new();
        let mut models: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !policies.contains(&run.result.policy.as_str()) {
                policies.push(&run.result.policy);
            }
            if !models.contains(&run.result.model.as_str()) {
                models.push(&run.result.model);
            }
        }
        let colour = |run: &RunReport| {
            policies
                .iter()
                .position(|policy| *policy == run.result.policy)
                .unwrap_or(0)
        };
        let charts_of = |model: &str| {
            let runs: Vec<(usize, &RunReport)> = self
                .runs
                .iter()
                .filter(|run| run.result.model == model)
                .map(|run| (colour(run), run))
                .collect();
            ModelCharts {
                model: model.to_owned(),
                legend: charts::legend(&runs),
                cdf: Value::from_safe_string(charts::latency_cdf(&runs)),
                bars: charts::bars(&runs)
                    .into_iter()
                    .map(Value::from_safe_string)
                    .collect(),
            }
        };
        models.into_iter().map(charts_of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::table::tests::run;

    fn report() -> Report {
        let runs = [("greedy", 34.7), ("lazy", 11.6), ("lazy:late-admits", 12.6)];
        let runs = runs.map(|(policy, mean_ms)| RunReport {
            result: run(policy, "gnmt", mean_ms),
            latencies_ns: (1..1000).map(|i| i * (mean_ms * 2000.0) as u64).collect(),
        });
        Report {
            title: "Policies <compared> & drawn".into(),
            settings: vec![("model".into(), "gnmt".into()), ("seed".into(), "1".into())],
            runs: runs.into(),
            sections: vec![
                (
                    "Timeline".into(),
                    Body::Pre("0.000us r0 <- arrives\n".into()),
                ),
                ("Note".into(), Body::Html("<p id=\"note\">as is</p>".into())),
            ],
        }
    }

    #[test]
    fn the_page_holds_settings_table_charts_and_sections() {
        let page = report().render().unwrap();
        for part in [
            "Policies &lt;compared&gt; &amp; drawn",
            "<dt>seed</dt>",
            "lazy:late-admits",
            "34.70",
            "0.000us r0 &lt;- arrives",
            "<p id=\"note\">as is</p>",
            "prefers-color-scheme: dark",
        ] {
            assert!(page.contains(part), "{part} is missing");
        }
        // One distribution, six charts of bars, and three lines of the legend.
        assert_eq!(page.matches("<svg").count(), 10);
        assert_eq!(page.matches("</svg>").count(), 10);
    }

    #[test]
    fn the_page_needs_no_network_and_no_script() {
        let page = report().render().unwrap();
        for part in ["http://", "https://", "<script", "<link", "@import", "url("] {
            assert!(!page.contains(part), "{part} in the page");
        }
    }

    #[test]
    fn the_same_report_gives_the_same_bytes() {
        assert_eq!(report().render().unwrap(), report().render().unwrap());
    }

    #[test]
    fn models_are_drawn_apart_with_one_colour_per_policy() {
        let mut report = report();
        let mut other = report.runs[1].clone();
        other.result.model = "resnet50".into();
        report.runs.push(other);
        let models = report.models();
        assert_eq!(models.len(), 2);
        assert_eq!(models[0].legend[1], models[1].legend[0]);
        assert!(report.render().unwrap().contains("<h2>resnet50</h2>"));
    }

    #[test]
    fn an_empty_report_is_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.html");
        Report::default().write(&path).unwrap();
        assert!(
            std::fs::read_to_string(path)
                .unwrap()
                .ends_with("</html>\n")
        );
        let missing = folder.path().join("none/r.html");
        assert!(
            Report::default()
                .write(&missing)
                .unwrap_err()
                .to_string()
                .contains("none")
        );
    }
}
