//! Moments: chosen points simulated once more, for what their numbers do not show: whole latency
//! distributions, and the batch table over time.

use std::collections::BTreeMap;

use lazybatch_engine::core::{Action, Event, Note};
use lazybatch_engine::driver::Observer;
use lazybatch_sla::{Launch, Nanos, SubBatchId, Time};

use super::cases::{Lab, Opened};
use super::file::Sweep;
use super::points::{Point, name};
use crate::arrivals::Arrival;
use crate::error::{Error, Result};
use crate::experiment::Detail;
use crate::report::RunReport;
use crate::report::lanes::{Lanes, Life, Stretch};
use crate::results::RunResult;
use crate::results::summary::completed_latencies;

/// Width of a window, in units of the least mean latency at the point.
const WINDOW: f64 = 4.0;
/// Policies whose batch tables are drawn, where they ran, besides the judged one and the best.
const DRAWN: [&str; 3] = ["greedy", "lazy", "continuous"];

/// A point looked at closely.
pub struct Moment {
    /// Why this one.
    pub title: String,
    /// Latencies of every policy, first seed.
    pub runs: Vec<RunReport>,
    /// Blocks by colour.
    pub blocks: Vec<String>,
    /// Pictures of the batch table.
    pub lanes: Vec<Lanes>,
}

/// Points worth a look: the stable one where the judged policy is furthest behind, and the stable
/// one where it gains the most over `lazy`; each with the reason.
pub fn choose(sweep: &Sweep) -> Vec<(String, &Point)> {
    let Some(judged) = sweep.judgement.as_ref().map(|j| j.policy.as_str()) else {
        return Vec::new();
    };
    let stable = || sweep.points.iter().filter(|p| p.stable);
    let by = |value: &dyn Fn(&Point) -> Option<f64>| {
        let known = stable().filter_map(|p| Some((value(p)?, p)));
        known.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, p)| p)
    };
    let worst = by(&|p| p.policy(judged)?.ratio);
    let base = if name(judged) == "lazy" {
        "greedy"
    } else {
        "lazy"
    };
    let gain = by(&|p| Some(p.policy(base)?.j_ms / p.policy(judged)?.j_ms));
    let mut chosen: Vec<(String, &Point)> = Vec::new();
    let reasons = [
        (gain, format!("where {judged} gains the most over {base}")),
        (
            worst,
            format!("where {judged} does worst against the best other policy"),
        ),
    ];
    for (point, reason) in reasons {
        if let Some(point) = point
            && !chosen.iter().any(|(_, p)| std::ptr::eq(*p, point))
        {
            chosen.push((reason, point));
        }
    }
    chosen
}

/// The point `MODEL@RATE@SLA_MS`, in the first setting that has it.
///
/// # Errors
/// [`Error::Parameter`] when there is none.
pub fn find<'a>(sweep: &'a Sweep, spec: &str) -> Result<&'a Point> {
    let fits = |p: &&Point| is_point(spec, &p.model, p.rate_rps, p.sla_ms);
    sweep.points.iter().find(fits).ok_or_else(|| {
        let last = sweep.points.last();
        no_point(spec, last.map(|p| (p.model.as_str(), p.rate_rps, p.sla_ms)))
    })
}

/// Whether `MODEL@RATE@SLA_MS` is this point.
pub fn is_point(spec: &str, model: &str, rate_rps: f64, sla_ms: f64) -> bool {
    let parts: Vec<&str> = spec.split('@').collect();
    let near = |a: f64, text: &str| {
        let number = text.parse::<f64>();
        number.is_ok_and(|b| (a - b).abs() <= 1e-6 * a.abs())
    };
    matches!(parts[..], [m, r, s] if m == model && near(rate_rps, r) && near(sla_ms, s))
}

/// What there is to say of a point that is none of a grid; `example` is one of it.
pub fn no_point(spec: &str, example: Option<(&str, f64, f64)>) -> Error {
    let example = example.map_or_else(String::new, |(model, rate, sla)| {
        format!(", such as {model}@{rate}@{sla}")
    });
    let expected = format!("a point of the grid as MODEL@RATE@SLA_MS{example}");
    Error::parameter("point", expected, format!("`{spec}`"))
}

impl Moment {
    /// Simulates a point's first seed again. `traces` as in [`Lab::open`].
    ///
    /// # Errors
    /// As [`Lab::open`] and [`crate::experiment::Simulation::run`].
    pub fn new(
        sweep: &Sweep,
        point: &Point,
        reason: &str,
        traces: Option<&std::path::Path>,
    ) -> Result<Self> {
        let grid = &sweep.grid;
        let workload = grid.models.iter().find(|m| m.label == point.model);
        let workload = workload.expect("points are of the grid's models");
        let lab = match Lab::open(grid, &point.setting, workload, traces)? {
            Opened::Lab(lab) => lab,
            Opened::Missing(what) => return Err(Error::run("point to look at", what)),
        };
        let seed = point.seeds.first().copied().unwrap_or(1);
        let arrivals = lab.arrivals(point.rate_rps, point.load, seed)?;
        let least = point
            .policies
            .iter()
            .map(|s| s.mean_ms)
            .fold(f64::MAX, f64::min);
        let (from, to) = window(&arrivals, Nanos::from_ms_f64(WINDOW * least));
        let judged = sweep.judgement.as_ref().map(|j| j.policy.as_str());
        let drawn = |p: &str| DRAWN.contains(&p) || p == point.best || Some(p) == judged;
        let sla = Nanos::from_ms_f64(point.sla_ms);
        let mut moment = Self {
            title: title(point, reason),
            runs: Vec::new(),
            blocks: Vec::new(),
            lanes: Vec::new(),
        };
        for model in &lab.profile.models {
            let several = lab.profile.models.len() > 1;
            let name = |block: &str| match several {
                true => format!("{} {block}", model.name),
                false => block.to_owned(),
            };
            moment
                .blocks
                .extend(model.blocks.iter().map(|b| name(&b.name)));
        }
        let num_blocks = lab.profile.models.iter().map(|m| m.blocks.len());
        let first_block: Vec<usize> = num_blocks
            .scan(0, |upto, n| {
                *upto += n;
                Some(*upto - n)
            })
            .collect();
        for standing in &point.policies {
            let policy = standing.policy.as_str();
            let mut recorder = Recorder::new(from, to, &first_block, &moment.blocks);
            let watch = drawn(policy);
            let simulation = lab.simulation(&arrivals, sla);
            let done = match watch {
                true => simulation.run(policy, None, &mut recorder, Detail::Table)?,
                false => simulation.run(policy, None, &mut (), Detail::Launches)?,
            };
            let latencies = completed_latencies(&done.requests);
            let (label, rate) = (point.model.as_str(), point.rate_rps);
            let result =
                RunResult::summarise(policy, label, rate, sla, &done.requests, &done.counters);
            moment.runs.push(RunReport {
                result,
                latencies_ns: latencies.into_iter().map(|l| l.0).collect(),
            });
            if watch {
                moment.lanes.push(recorder.picture(policy, &arrivals));
            }
        }
        Ok(moment)
    }
}

/// A point in words.
pub fn title(point: &Point, reason: &str) -> String {
    let setting = point.setting.label();
    let setting = if setting.is_empty() {
        setting
    } else {
        format!(", {setting}")
    };
    let reason = if reason.is_empty() {
        String::new()
    } else {
        format!(": {reason}")
    };
    format!(
        "{} at {} requests/s, {:.0} % load, SLA {} ms{setting}{reason}",
        point.model,
        crate::results::table::plain(point.rate_rps),
        100.0 * point.load,
        point.sla_ms,
    )
}

/// The window of that length with the most arrivals in the middle half of the run; the first of
/// equals. It starts at an arrival.
fn window(arrivals: &[Arrival], length: Nanos) -> (Time, Time) {
    let (quarter, three) = (arrivals.len() / 4, arrivals.len().div_ceil(4) * 3);
    let middle = &arrivals[quarter..three.clamp(quarter + 1, arrivals.len())];
    let count = |from: Time| arrivals.partition_point(|a| a.at < from + length);
    let mut best = (middle[0].at, 0);
    for (i, arrival) in middle.iter().enumerate() {
        let num = count(arrival.at) - (quarter + i);
        if num > best.1 {
            best = (arrival.at, num);
        }
    }
    (best.0, best.0 + length)
}

/// Records entries and launches within a window. Needs the notes of the batch table.
struct Recorder<'a> {
    from: Time,
    to: Time,
    first_block: &'a [usize],
    blocks: &'a [String],
    lives: BTreeMap<SubBatchId, (Time, Option<Time>, Vec<Stretch>)>,
    running: Vec<(Time, Launch)>,
}

impl<'a> Recorder<'a> {
    fn new(from: Time, to: Time, first_block: &'a [usize], blocks: &'a [String]) -> Self {
        Self {
            from,
            to,
            first_block,
            blocks,
            lives: BTreeMap::new(),
            running: Vec::new(),
        }
    }

    fn end(&mut self, entry: SubBatchId, now: Time) {
        if now < self.from {
            self.lives.remove(&entry);
        } else if let Some(life) = self.lives.get_mut(&entry) {
            life.1.get_or_insert(now);
        }
    }

    fn start(&mut self, entry: SubBatchId, now: Time) {
        if now <= self.to {
            self.lives.insert(entry, (now, None, Vec::new()));
        }
    }

    fn ran(&mut self, start: Time, launch: &Launch, now: Time) {
        if now < self.from || start > self.to {
            return;
        }
        let Some((_, _, stretches)) = self.lives.get_mut(&launch.sub_batch) else {
            return;
        };
        let block = self.first_block[launch.model.index()] + launch.block as usize;
        let idle = launch.members.iter().filter(|m| m.idle).count();
        let members = launch.members.len() - idle;
        let gap = self.to.since(self.from).0 / 500;
        let follows = |s: &&mut Stretch| {
            (s.colour, s.members, s.idle) == (block, members, idle) && start.since(s.to).0 <= gap
        };
        match stretches.last_mut().filter(follows) {
            Some(last) => last.to = now,
            None => stretches.push(Stretch {
                from: start,
                to: now,
                colour: block,
                what: self.blocks[block].clone(),
                members,
                idle,
            }),
        }
    }

    fn picture(self, policy: &str, arrivals: &[Arrival]) -> Lanes {
        let (from, to) = (self.from, self.to);
        let within = |&(start, end, _): &(Time, Option<Time>, Vec<Stretch>)| {
            start <= to && end.is_none_or(|end| end >= from)
        };
        let lives = self.lives.into_iter().filter(|(_, life)| within(life));
        let mut lives: Vec<Life> = lives
            .map(|(id, (start, end, stretches))| Life {
                name: id.to_string(),
                from: start.max(from),
                to: end.unwrap_or(to).min(to),
                stretches,
            })
            .collect();
        lives.sort_by_key(|l| l.from);
        Lanes {
            title: format!("{policy}: batch table over time, numbers are members"),
            from,
            to,
            arrivals: arrivals.iter().map(|a| a.at).collect(),
            lives,
        }
    }
}

impl Observer for Recorder<'_> {
    fn on_event(&mut self, now: Time, event: &Event) {
        if let Event::Done { ticket, .. } = event
            && let Some(i) = self.running.iter().position(|r| r.1.ticket == *ticket)
        {
            let (start, launch) = self.running.remove(i);
            self.ran(start, &launch, now);
        }
    }

    fn on_launch(&mut self, now: Time, launch: &Launch) {
        self.running.push((now, launch.clone()));
    }

    fn on_action(&mut self, now: Time, action: &Action) {
        match action {
            Action::Note(Note::Admit { sub_batch, .. }) => self.start(*sub_batch, now),
            Action::Note(Note::Split { ahead, .. }) => self.start(*ahead, now),
            Action::Note(Note::Merge { from, .. }) => self.end(*from, now),
            Action::Note(Note::Pop { sub_batch }) => self.end(*sub_batch, now),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use crate::sweep::run::{Options, run};

    #[test]
    fn the_window_has_the_most_arrivals_of_the_middle() {
        let at = |ms: u64| Arrival::new(Time(ms * 1_000_000), "m", 0, 0);
        let arrivals: Vec<_> = [0, 0, 0, 0, 10, 20, 21, 22, 40, 50, 51, 60].map(at).into();
        let (from, to) = window(&arrivals, Nanos::from_ms(5));
        assert_eq!((from.as_us(), to.as_us()), (20e3, 25e3));
    }

    #[test]
    fn a_moment_agrees_with_the_sweep() {
        let (grid, _folder) = fixture::grid("'loop'", "lengths = 'fixed:2:3'\n");
        let ran = run(&grid, Options::default(), &|_| {}).unwrap();
        let sweep = Sweep::new(&grid, ran, Some("lazy")).unwrap();
        let chosen = choose(&sweep);
        assert!(!chosen.is_empty() && chosen.len() <= 2);
        let point = find(&sweep, "loop@30000@2").unwrap();
        let moment = Moment::new(&sweep, point, "", None).unwrap();
        assert_eq!(moment.runs.len(), 5);
        for run in &moment.runs {
            let same = |r: &&super::super::Run| {
                r.seed == 1
                    && r.result.policy == run.result.policy
                    && r.result.rate_rps == 30000.0
                    && r.result.sla_ms == 2.0
            };
            assert_eq!(sweep.runs.iter().find(same).unwrap().result, run.result);
        }
        // greedy and lazy; the device is busy for most of the window, never more than all of it.
        assert_eq!(moment.lanes.len(), 2);
        for lanes in &moment.lanes {
            let busy: u64 = lanes
                .lives
                .iter()
                .flat_map(|l| &l.stretches)
                .map(|s| s.to.0.min(lanes.to.0) - s.from.0.max(lanes.from.0))
                .sum();
            let share = busy as f64 / lanes.to.since(lanes.from).0 as f64;
            assert!((0.5..=1.0).contains(&share), "{}: {share}", lanes.title);
        }
        assert!(
            find(&sweep, "loop@1@2")
                .unwrap_err()
                .to_string()
                .contains("MODEL@RATE@SLA_MS")
        );
    }
}
