//! What the base rules (`base.rs`) are made of, and the words that say so.
//!
//! `NAME:NUMBERS/capP/fillP/TURNS/no-PART/withinP/LATE`, where all but the name and its numbers may be
//! left out: `sharing:2/6/1/cap97/ripe/demote`.

use lazybatch_sla::{ClassId, Late};

use super::promise::Without;
use super::sizes::LEAST_FILL;
use super::turns::Turns;
use crate::core::View;

/// What makes one base rule differ from another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rule {
    pub order: Order,
    pub gate: Gate,
    /// Batches of at most the knee at this share of the highest throughput.
    pub cap: Option<f64>,
    /// Share of the highest throughput at which a batch is filled well (`sizes.rs`): those are late that
    /// would be in such a batch, and none is made smaller for its most urgent.
    pub fill: f64,
    /// How models take turns.
    pub turns: Turns,
    /// What predictions leave out.
    pub without: Without,
    /// Batches are no larger than their most urgent member bears.
    pub shrinks: bool,
    pub late: Late,
    /// Share of its target behind which the oldest is shed as long as those behind it fill a batch well.
    pub within: f64,
}

impl Rule {
    /// What becomes of those of a class that are too late.
    pub fn late(&self, view: &View<'_>, class: ClassId) -> Late {
        view.classes()[class.index()].late.unwrap_or(self.late)
    }
}

/// Which entry of a model runs at the head of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Order {
    /// The most progressed.
    Front,
    /// The least progressed.
    Newest,
    /// That whose members have waited most since its last launch: the nodes that ran since then, times
    /// the number of its members to the power `members`, times `front` for the most progressed.
    Share { members: f64, front: f64 },
    /// Those behind the last loop, then those before it, then its head.
    Iteration,
}

/// When waiting requests are admitted although some of their model are in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Gate {
    /// Never.
    Empty,
    /// Inside a block, where it pays with that many requests queueing behind.
    Join(f64),
    /// When waiting outweighs the disturbance by that factor.
    Balance(f64),
    /// Once between two passes of the last loop.
    Iteration,
}

/// The word of [`Rule::within`].
const WITHIN: &str = "within";

/// Names and how their numbers are read.
type Reader = fn(Option<&str>) -> Option<Rule>;
const RULES: [(&str, Reader); 5] = [
    ("front", |a| rule(a, 0, |_| (Order::Front, Gate::Empty))),
    ("join", |a| {
        rule(a, 1, |n| (Order::Newest, Gate::Join(n[0])))
    }),
    ("balance", |a| {
        rule(a, 1, |n| (Order::Newest, Gate::Balance(n[0])))
    }),
    ("sharing", |a| {
        rule(a, 3, |n| {
            let order = Order::Share {
                members: n[1],
                front: n[2],
            };
            (order, Gate::Balance(n[0]))
        })
    }),
    ("iteration", |a| {
        rule(a, 0, |_| (Order::Iteration, Gate::Iteration))
    }),
];

/// The rule of a specification such as `balance:1/demote`.
pub(super) fn find(spec: &str) -> Option<Rule> {
    let (name, argument) = super::split(spec);
    read(name, argument)
}

/// The rule of a name and what stands behind its colon.
pub(super) fn read(name: &str, argument: Option<&str>) -> Option<Rule> {
    let (_, read) = RULES.into_iter().find(|r| r.0 == name)?;
    read(argument)
}

fn rule(
    argument: Option<&str>,
    num_numbers: usize,
    parts: impl Fn(&[f64]) -> (Order, Gate),
) -> Option<Rule> {
    let mut words: Vec<&str> = argument.into_iter().flat_map(|a| a.split('/')).collect();
    let late = words.last().and_then(|w| late(w));
    words.truncate(words.len() - usize::from(late.is_some()));
    let within = words.last().and_then(|w| percent(WITHIN, w));
    words.truncate(words.len() - usize::from(within.is_some()));
    let (mut without, mut shrinks) = (Without::default(), true);
    while let Some(part) = words.last().and_then(|w| w.strip_prefix("no-")) {
        match part {
            "batched" => without.batched = true,
            "stretch" => without.stretch = true,
            "shrink" => shrinks = false,
            _ => return None,
        }
        words.pop();
    }
    let turns = words.last().and_then(|w| Turns::find(w));
    words.truncate(words.len() - usize::from(turns.is_some()));
    let fill = words.last().and_then(|w| percent("fill", w));
    words.truncate(words.len() - usize::from(fill.is_some()));
    let cap = words.last().and_then(|w| percent("cap", w));
    words.truncate(words.len() - usize::from(cap.is_some()));
    let number = |w: &&str| w.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0);
    let numbers: Vec<f64> = words.iter().map(number).collect::<Option<_>>()?;
    if numbers.len() != num_numbers {
        return None;
    }
    let (order, gate) = parts(&numbers);
    Some(Rule {
        order,
        gate,
        cap,
        fill: fill.unwrap_or(LEAST_FILL),
        turns: turns.unwrap_or(Turns::Least),
        without,
        shrinks,
        late: late.unwrap_or(Late::Keep),
        within: within.unwrap_or(1.0),
    })
}

/// A specification with that share, in percent, in the place of its own, if it has one.
pub(super) fn within(spec: &str, share: u32) -> String {
    let (name, argument) = super::split(spec);
    let words = argument.into_iter().flat_map(|a| a.split('/'));
    let mut words: Vec<String> = words
        .filter(|w| percent(WITHIN, w).is_none())
        .map(str::to_string)
        .collect();
    if share < 100 {
        let late = usize::from(words.last().is_some_and(|w| late(w).is_some()));
        words.insert(words.len() - late, format!("{WITHIN}{share}"));
    }
    match words.is_empty() {
        true => name.to_string(),
        false => format!("{name}:{}", words.join("/")),
    }
}

/// The share of a word such as `cap90`.
fn percent(name: &str, word: &str) -> Option<f64> {
    let percent: u32 = word.strip_prefix(name)?.parse().ok()?;
    (1..=100)
        .contains(&percent)
        .then(|| f64::from(percent) / 100.0)
}

/// What a rule may say of those that are too late.
pub(super) fn late(word: &str) -> Option<Late> {
    let words = [Late::Demote, Late::Shed, Late::Refuse];
    words.into_iter().find(|l| l.name() == word)
}
