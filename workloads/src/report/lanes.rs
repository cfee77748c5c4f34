//! The batch table over time, as a picture: entries as lanes, width by time, colour by block.
//!
//! A pale bar is the life of an entry, from its admission or split to its merge or end; a coloured
//! one is where it runs, with the number of its members. Arrivals are ticks on top.

use lazybatch_sla::Time;

use super::svg::Svg;

/// Width of the picture.
const WIDTH: f64 = 1060.0;
/// Height of a lane.
const LANE: f64 = 24.0;
/// Where the lanes start.
const LEFT: f64 = 62.0;
/// Most lanes drawn.
const MAX_LANES: usize = 14;

/// An entry of the batch table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its name.
    pub name: String,
    /// From when.
    pub from: Time,
    /// Until when.
    pub to: Time,
    /// Where it ran.
    pub stretches: Vec<Stretch>,
}

/// Launches of one entry, one after another, with the same members and block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// From the first one's start.
    pub from: Time,
    /// To the last one's end.
    pub to: Time,
    /// Position of the block's colour.
    pub colour: usize,
    /// What ran, for the tooltip.
    pub what: String,
    /// Members that needed it.
    pub members: usize,
    /// Members that were computed for padding only.
    pub idle: usize,
}

/// A picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// What it shows.
    pub title: String,
    /// Its left end.
    pub from: Time,
    /// Its right end.
    pub to: Time,
    /// When requests arrived.
    pub arrivals: Vec<Time>,
    /// Entries in order of their start.
    pub lives: Vec<Life>,
}

/// The lane of each life: the lowest that is free when it starts.
fn lanes(lives: &[Life]) -> Vec<usize> {
    let mut free_at: Vec<Time> = Vec::new();
    let mut lanes = Vec::new();
    for life in lives {
        let lane = free_at.iter().position(|end| *end <= life.from);
        let lane = lane.unwrap_or_else(|| {
            free_at.push(Time::ZERO);
            free_at.len() - 1
        });
        free_at[lane] = life.to;
        lanes.push(lane);
    }
    lanes
}

/// A round step of an axis with about `num` ticks over `span`.
fn round_step(span: f64, num: f64) -> f64 {
    let raw = span / num;
    let unit = 10.0_f64.powf(raw.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|t| t * unit >= raw);
    times.unwrap_or(10.0) * unit
}

impl Lanes {
    /// The picture as SVG.
    pub fn draw(&self) -> String {
        const TOP: f64 = 50.0;
        let lanes = lanes(&self.lives);
        let num_lanes = lanes.iter().map(|l| l + 1).max().unwrap_or(1);
        let shown = num_lanes.min(MAX_LANES);
        let bottom = TOP + LANE * shown as f64;
        let mut svg = Svg::new(WIDTH, bottom + 44.0, &self.title);
        svg.text("title", "start", (0.0, 16.0), &self.title);
        let span = self.to.since(self.from).0.max(1) as f64;
        let x = |t: Time| {
            let inside = t.0.clamp(self.from.0, self.to.0) - self.from.0;
            LEFT + (WIDTH - LEFT - 12.0) * inside as f64 / span
        };
        let step_ms = round_step(span / 1e6, 8.0);
        let mut tick = (self.from.0 as f64 / 1e6 / step_ms).ceil() as u64;
        while tick as f64 * step_ms <= self.to.0 as f64 / 1e6 {
            let ms = tick as f64 * step_ms;
            let at = x(Time((ms * 1e6).round() as u64));
            svg.line("grid", (at, TOP - 4.0), (at, bottom + 4.0));
            let decimals = (-step_ms.log10().floor()).max(0.0) as usize;
            svg.text(
                "tick",
                "middle",
                (at, bottom + 18.0),
                &format!("{ms:.decimals$}"),
            );
            tick += 1;
        }
        svg.text("note", "middle", (WIDTH / 2.0, bottom + 36.0), "time, ms");
        svg.text("tick", "end", (LEFT - 8.0, 41.0), "arrivals");
        for at in self
            .arrivals
            .iter()
            .filter(|t| **t >= self.from && **t <= self.to)
        {
            svg.line("arrival", (x(*at), 30.0), (x(*at), 44.0));
        }
        for lane in 0..shown {
            let y = TOP + LANE * lane as f64;
            svg.text(
                "tick",
                "end",
                (LEFT - 8.0, y + LANE / 2.0 + 4.0),
                &format!("{}", lane + 1),
            );
        }
        let mut hidden = 0;
        for (life, &lane) in self.lives.iter().zip(&lanes) {
            if lane >= MAX_LANES {
                hidden += 1;
                continue;
            }
            let y = TOP + LANE * lane as f64;
            let (from, to) = (x(life.from), x(life.to));
            svg.rect(
                "life",
                (from, y + 7.0),
                (to - from).max(0.6),
                LANE - 14.0,
                &life.name,
            );
            for stretch in &life.stretches {
                let (from, to) = (x(stretch.from), x(stretch.to));
                let width = (to - from).max(0.6);
                let label = match stretch.idle {
                    0 => stretch.members.to_string(),
                    idle => format!("{}+{idle}", stretch.members),
                };
                let tip = format!("{}: {}, {label} members", life.name, stretch.what);
                let alt = if stretch.colour >= 8 { " alt" } else { "" };
                let class = format!("stretch c{}{alt}", stretch.colour % 8);
                svg.rect(&class, (from, y + 3.0), width, LANE - 6.0, &tip);
                if width > 7.5 * label.len() as f64 + 4.0 {
                    let middle = (from + width / 2.0, y + LANE / 2.0 + 4.0);
                    svg.text("inside", "middle", middle, &label);
                }
            }
        }
        if hidden > 0 {
            let text = format!("{hidden} entries beyond {MAX_LANES} lanes not shown");
            svg.text("note", "end", (WIDTH - 12.0, 16.0), &text);
        }
        svg.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(from: u64, to: u64) -> Life {
        Life {
            name: format!("b{from}"),
            from: Time(from),
            to: Time(to),
            stretches: vec![Stretch {
                from: Time(from),
                to: Time(to),
                colour: 1,
                what: "decoder".into(),
                members: 3,
                idle: 0,
            }],
        }
    }

    #[test]
    fn entries_take_the_lowest_free_lane() {
        let lives = [
            life(0, 50),
            life(10, 30),
            life(20, 40),
            life(30, 60),
            life(50, 70),
        ];
        assert_eq!(lanes(&lives), [0, 1, 2, 1, 0]);
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(round_step(80.0, 8.0), 10.0);
        assert_eq!(round_step(100.0, 8.0), 20.0);
        assert!((round_step(3.6, 8.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn width_is_time() {
        let picture = Lanes {
            title: "lazy".into(),
            from: Time(0),
            to: Time(986_000_000),
            arrivals: vec![Time(0), Time(2_000_000_000)],
            lives: vec![life(0, 100_000_000), life(50_000_000, 986_000_000)],
        };
        let svg = picture.draw();
        assert!(
            svg.contains("x=\"62.0\" y=\"53.0\" width=\"100.0\""),
            "{svg}"
        );
        assert!(
            svg.contains("x=\"112.0\" y=\"77.0\" width=\"936.0\""),
            "{svg}"
        );
        assert_eq!(svg.matches("class=\"arrival\"").count(), 1);
        assert!(svg.contains(">3</text>") && svg.contains(">800</text>"));
    }

    #[test]
    fn too_many_entries_are_counted() {
        let lives = (0..20).map(|i| life(i, 1_000_000)).collect();
        let picture = Lanes {
            title: "t".into(),
            from: Time(0),
            to: Time(1_000_000),
            arrivals: vec![],
            lives,
        };
        assert!(picture.draw().contains("6 entries beyond 14 lanes"));
    }
}
