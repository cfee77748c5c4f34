//! `adaptive`: the best rule for the load there is, chosen by simulation.
//!
//! Two time scales. At every boundary the *incumbent*, one of the rules of [`super::base`] or, where
//! classes, levels and shares do not matter, another policy, decides. Every so many arrivals, and
//! when the arrival rate or the number of open requests has changed, the policy asks for a plan:
//! each candidate rule is simulated from the batch table and the queue as they are now over the
//! arrivals of the recent past, with their gaps, lengths and deadlines as they were and the latency
//! tables as measured, and the one of least mean cost becomes the incumbent, the incumbent keeping its
//! place unless another is cheaper by [`HYSTERESIS`], and by more than chance. Cost is latency, plus
//! [`MISS_WEIGHT`] times the SLA target where that is missed; without loops, and with several models, also
//! that of those behind the plan whom its backlog would delay.
//!
//! What is learned online: arrivals (`history.rs`), output lengths of ended requests, which stand in
//! for those of requests that have not ended, by input length; the ratio of measured to predicted
//! launch times, by block and batch size, which corrects the tables that plans are made with and rules
//! decide by from then on (`correction.rs`); whether a deadline can be met (`promise.rs`, `outputs.rs`).
//!
//! Requests that can no longer be in time are demoted: they let those pass that can. `adaptive:shed`
//! and `adaptive:refuse` refuse them instead, as the base rules do; what a class says of its own
//! requests goes before that. Where some are shed and models have no loops, plans also choose for how
//! long those may wait (`withinP` of the base rules): a queue that is kept shorter is worked off as
//! fast, and all in it are answered sooner. `adaptive:RULE` keeps one rule and only rescues.
//! `adaptive:without=PART+PART`, or `adaptive:shed/without=PART`, leaves parts out, to see what they are
//! worth.
//!
//! Nobody starves: when as many later requests have ended before the oldest open one as
//! `rescue.rs` allows, nobody but the oldest is admitted, and its entry runs, until it has ended.
//!
//! Source: rollout over a portfolio of heuristics is one-step policy improvement (Bertsekas,
//! "Rollout Algorithms for Discrete Optimization"); here over whole rules, not single steps.

use lazybatch_sla::{Class, ClassId, Late, Launch, ModelId, Nanos, Time};
use smallvec::SmallVec;

use super::base::Base;
use super::bounds;
use super::coarse;
use super::correction::Corrections;
use super::history::History;
use super::lists::{
    LAZY, LOOP_OTHERS, LOOP_REFUSING, LOOP_RULES, LOOP_SHARED, STATIC_OTHERS, STATIC_RULES,
    STATIC_SHARED,
};
use super::load;
use super::places::Places;
use super::rescue::Rescue;
use super::rule;
use super::{Decision, Entry, Policy};
use crate::core::{
    Backlog, Ending, Key, ModelSpec, Open, Plan, PlanRequest, Request, View, Weighing,
};

/// Registry line.
pub const ENTRY: Entry = Entry {
    name: "adaptive",
    usage: "adaptive[:LATE[/without=PARTS]|:RULE|:without=PARTS]",
    summary: "the base rule that does best over recent arrivals, by simulation; or always RULE",
    examples: &[
        "adaptive",
        "adaptive:balance:1/demote",
        "adaptive:without=caps+others+hysteresis",
    ],
    refusing: &["adaptive:shed", "adaptive:shed/without=within"],
    needs_output_len: false,
    build: |argument| {
        let (first, behind) = match argument.map(|a| a.split_once('/').ok_or(a)) {
            Some(Ok((first, behind))) => (Some(first), Some(behind)),
            Some(Err(all)) => (Some(all), None),
            None => (None, None),
        };
        let late = first.and_then(rule::late);
        let rest = if late.is_some() { behind } else { argument };
        let without = match rest.and_then(|r| r.strip_prefix("without=")) {
            Some(parts) => Some(Parts::parse(parts)?),
            None => None,
        };
        let rule = rest.filter(|_| without.is_none());
        if late.is_some() && rule.is_some() {
            return None;
        }
        let fixed = match rule {
            None => None,
            Some(rule) => Some(Incumbent::new(rule)?),
        };
        Some(Box::new(Adaptive {
            is_fixed: fixed.is_some(),
            // Until the first decision tells the models.
            incumbent: fixed.or_else(|| Incumbent::new("front"))?,
            late: late.unwrap_or(Late::Demote),
            without: without.unwrap_or_default(),
            history: History::default(),
            rescue: Rescue::default(),
            rescues: false,
            corrections: Corrections::default(),
            is_planning: false,
            is_outdated: false,
            rests_until: Time::ZERO,
            planned: None,
            has_one_class: false,
            are_several: false,
            have_loops: false,
            refuses: false,
            sheds: false,
            is_misfit: false,
            compared: Vec::new(),
            met: Vec::new(),
            met_at: 0,
            has_news: false,
        }))
    },
};

/// By how much another rule must be cheaper to replace the incumbent.
pub const HYSTERESIS: f64 = 0.02;
/// The same of one model with loops, where [`DOUBT`] guards against chance.
const HYSTERESIS_LOOPS: f64 = 0.005;
/// The same where requests may be refused or shed.
const HYSTERESIS_REFUSING: f64 = 0.0025;
/// And by how many standard errors of the difference, as the parts of the past differ: a rule that is better
/// for some of the arrivals may be a bad one for those that come. Where there are several models rules differ
/// by more than that, and the one to start with may be far off: none. Without loops none either: near
/// capacity the errors are those of backlogs, and whoever waits for certainty has one meanwhile.
const DOUBT: f64 = 1.0;
/// By how much `lazy` must be cheaper than all others: it is good for a rate that stays below capacity
/// by little and bad for those around it.
const LAZY_EDGE: f64 = 0.02;
/// What a missed deadline costs, as a multiple of its SLA target.
pub const MISS_WEIGHT: f64 = 3.0;
/// Arrivals before the first plan, or these few where they take long.
const FIRST_PLAN: u64 = 64;
const FEW: u64 = 16;
const LONG: Nanos = Nanos::from_ms(30);
/// Most arrivals between two plans, unless these take less than so long.
const PLAN_EVERY: u64 = 2048;
const STEADY: Nanos = Nanos::from_ms(10_000);
/// Launches that a plan simulates for each arrival so far, within bounds.
const PER_ARRIVAL: u64 = 450;
const LEAST_BUDGET: u64 = 75_000;
const MOST_BUDGET: u64 = 900_000;
/// But no more than one for each of these since the oldest arrival that is remembered, beside so
/// many, about as long as simulating it takes: a plan that takes longer than what it knows of is
/// late.
const LAUNCH: Nanos = Nanos(1000);
const SOON: u64 = 8_000;
/// Near capacity (`load.rs`) a plan looks so many times as far: a rule that serves those in time first, in
/// small batches, looks best until one sees that its backlog stays.
const LONGER: usize = 4;
/// Arrivals between two plans that a change of rate asks for.
const RATE_SEEN: u64 = 256;
/// Change of the arrival rate, as a factor, that asks for a plan.
const RATE_CHANGE: f64 = 1.3;
/// Arrivals between two plans that a change of the number of open requests asks for.
const OPEN_SEEN: u64 = 64;
/// Change of that number, as a factor, and so many on top, that asks for a plan.
const OPEN_CHANGE: f64 = 1.5;
const OPEN_MORE: f64 = 16.0;

/// What several models ask for, of capacity, from which on they have turns by charge: one that asks for more
/// than there is would have most of them by the other policies.
const SHARED_EVENLY: f64 = 1.0;

/// Parts that may be left out, to see what they are worth.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    /// Rules that cap batches at the knee.
    caps: bool,
    /// Candidates beside the base rules.
    others: bool,
    /// Demotion of those that are too late.
    demotion: bool,
    /// Times of batches in predictions, in the place of the sum over requests alone.
    batched: bool,
    /// The ratio that requests took against predictions.
    stretch: bool,
    /// Batches that are no larger than the most urgent bears.
    shrink: bool,
    /// Correction of latency tables by measured launches.
    correction: bool,
    /// Hysteresis.
    hysteresis: bool,
    /// Rescue of who is passed over too often.
    rescue: bool,
    /// Bounds of how long those wait that may be shed.
    within: bool,
    /// What the backlog at the end of a plan costs behind it.
    backlog: bool,
}

impl Parts {
    fn parse(names: &str) -> Option<Self> {
        let mut parts = Self::default();
        for name in names.split('+') {
            let part = match name {
                "caps" => &mut parts.caps,
                "others" => &mut parts.others,
                "demotion" => &mut parts.demotion,
                "batched" => &mut parts.batched,
                "stretch" => &mut parts.stretch,
                "shrink" => &mut parts.shrink,
                "correction" => &mut parts.correction,
                "hysteresis" => &mut parts.hysteresis,
                "rescue" => &mut parts.rescue,
                "within" => &mut parts.within,
                "backlog" => &mut parts.backlog,
                _ => return None,
            };
            *part = true;
        }
        Some(parts)
    }

    /// What rules are to leave out, in their words.
    fn words(self) -> Vec<&'static str> {
        let words = [
            (self.batched, "no-batched"),
            (self.stretch, "no-stretch"),
            (self.shrink, "no-shrink"),
        ];
        words.iter().filter(|w| w.0).map(|w| w.1).collect()
    }
}

/// Who decides.
struct Incumbent {
    name: String,
    /// Learns whoever decides.
    base: Base,
    /// In the place of `base`.
    other: Option<Box<dyn Policy>>,
}

impl Incumbent {
    fn new(rule: &str) -> Option<Self> {
        Some(Self {
            name: rule.to_string(),
            base: Base::new(rule::find(rule)?),
            other: None,
        })
    }

    fn change(&mut self, name: &str) {
        self.name = name.to_string();
        self.other = None;
        match rule::find(name) {
            Some(rule) => self.base.change(rule),
            None => self.other = super::build(name).ok(),
        }
    }

    fn decide(&mut self, view: &View<'_>) -> Decision {
        match &mut self.other {
            Some(other) => {
                self.base.pause();
                other.decide(view)
            }
            None => self.base.decide(view),
        }
    }

    fn because(&self) -> String {
        let because = match &self.other {
            Some(other) => other.because(),
            None => self.base.because(),
        };
        match because.is_empty() {
            true => self.name.clone(),
            false => format!("{}: {because}", self.name),
        }
    }

    fn on_arrive(&mut self, now: Time, request: &Request) {
        self.base.on_arrive(now, request);
        if let Some(other) = &mut self.other {
            other.on_arrive(now, request);
        }
    }

    fn on_done(&mut self, now: Time, launch: &Launch, took: Nanos, ran: Nanos) {
        self.base.on_done(now, launch, took, ran);
        if let Some(other) = &mut self.other {
            other.on_done(now, launch, took, ran);
        }
    }

    fn on_model(&mut self, model: ModelId, models: &[ModelSpec]) {
        self.base.on_model(model, models);
        if let Some(other) = &mut self.other {
            other.on_model(model, models);
        }
    }

    fn on_end(&mut self, now: Time, ending: &Ending) {
        self.base.on_end(now, ending);
        if let Some(other) = &mut self.other {
            other.on_end(now, ending);
        }
    }
}

/// See the module.
struct Adaptive {
    incumbent: Incumbent,
    /// What becomes of those that are too late, where their class does not say.
    late: Late,
    /// What is left out.
    without: Parts,
    /// The incumbent stays, whatever comes.
    is_fixed: bool,
    history: History,
    rescue: Rescue,
    /// The last decision was a rescue.
    rescues: bool,
    corrections: Corrections,
    is_planning: bool,
    /// The plan that is being made is for models that are not those any more, or knows no levels.
    is_outdated: bool,
    /// No plan is asked for before.
    rests_until: Time,
    /// What was seen when the last plan was asked for.
    planned: Option<Seen>,
    /// Requests are of one SLA class, and some may be refused or shed; when it last looked.
    has_one_class: bool,
    refuses: bool,
    /// Some may be shed; when it last looked.
    sheds: bool,
    /// Requests are of several models; when it last looked, or asked for a plan.
    are_several: bool,
    /// Those models have loops.
    have_loops: bool,
    /// A request has come of a model or a class, or with a priority level, as there was none: the incumbent
    /// may know none.
    is_misfit: bool,
    /// Rules that the plan which is being made compares, in order of their names.
    compared: Vec<String>,
    /// Whether there ever was a request of it, by model; and whether the first of one came behind the last
    /// plan.
    met: Vec<bool>,
    has_news: bool,
    /// How many had arrived before the last model was met.
    met_at: u64,
}

/// The models that requests ask for.
struct Asked {
    have_loops: bool,
    are_several: bool,
}

/// Rules in order of their names.
fn sorted(rules: &[String]) -> Vec<String> {
    let mut rules = rules.to_vec();
    rules.sort();
    rules
}

/// What a plan goes by, in short.
struct Seen {
    at: Time,
    num_arrivals: u64,
    /// Requests per second.
    rate: f64,
    /// Requests that had not ended.
    num_open: usize,
    /// Of what span arrivals have to be known so that bounds of waiting can be compared, if they were not.
    span: Option<Nanos>,
    /// How the rules are weighed.
    weighing: Weighing,
}

impl Policy for Adaptive {
    fn decide(&mut self, view: &View<'_>) -> Decision {
        if !self.corrections.have_begun() {
            self.start(view.models());
        }
        self.fit(view);
        let rescued = match self.without.rescue {
            true => None,
            false => self.rescue.decide(view),
        };
        self.rescues = rescued.is_some();
        if let Some(decision) = rescued {
            return decision;
        }
        self.incumbent.decide(&self.corrections.view(view))
    }

    fn refuse(&mut self, view: &View<'_>) -> Option<(Key, &'static str)> {
        match self.incumbent.other {
            Some(_) => None,
            None => self.incumbent.base.refuse(&self.corrections.view(view)),
        }
    }

    fn because(&self) -> String {
        match self.rescues {
            true => "too many later requests have ended before the oldest".into(),
            false => self.incumbent.because(),
        }
    }

    fn rule(&self) -> Option<&str> {
        Some(&self.incumbent.name)
    }

    fn on_arrive(&mut self, now: Time, request: &Request) {
        let is_new = !self.history.has(request.model)
            || !self.history.has_class(request.class)
            || (request.priority != 0 && !self.history.has_priorities());
        if is_new && !self.is_fixed {
            self.is_misfit = true;
        }
        self.meets(request.model);
        self.history.on_arrive(request);
        self.rescue.on_arrive(request);
        self.incumbent.on_arrive(now, request);
    }

    fn on_done(&mut self, now: Time, launch: &Launch, took: Nanos, ran: Nanos) {
        if !self.without.correction {
            self.corrections.on_done(launch, took);
        }
        self.incumbent.on_done(now, launch, took, ran);
    }

    fn on_end(&mut self, now: Time, ending: &Ending) {
        self.history.on_end(ending);
        self.rescue.on_end(ending);
        self.incumbent.on_end(now, ending);
    }

    fn on_model(&mut self, model: ModelId, models: &[ModelSpec]) {
        if let Some(met) = self.met.get_mut(model.index()) {
            *met = false;
        }
        self.history.on_model(model);
        self.incumbent.on_model(model, models);
        if !self.corrections.have_begun() {
            return self.start(models);
        }
        self.is_outdated = self.is_planning;
        self.rescue.start(models);
        self.corrections.on_model(model, models);
        if !self.is_fixed {
            let names = self.candidates(models);
            if !names.contains(&self.incumbent.name) {
                self.incumbent.change(&names[0]);
            }
        }
    }

    fn plan(&mut self, view: &View<'_>) -> Option<PlanRequest> {
        if self.is_fixed
            || self.is_planning
            || view.now < self.rests_until
            || !self.is_due(view.now)
        {
            return None;
        }
        if self.history.is_empty() {
            return None;
        }
        self.fit(view);
        self.look(view.classes());
        self.is_planning = true;
        let (models, classes) = (view.models(), view.classes());
        let places = Places::new(view);
        let mut arrivals = self.history.arrivals(models, |id| places.ran(id));
        let open = self.history.open(view.now).into_iter();
        let open = open.map(|(i, since)| Open {
            past: arrivals[i],
            since,
            place: places.of(arrivals[i].id),
        });
        let mut open: Vec<_> = open.filter(|o| !view.is_finishing(o.past.id)).collect();
        let corrections = self.corrections.correct(models);
        let host = self.incumbent.base.host();
        let per_request = match view.is_in_place() {
            true => host.per_request(),
            // The device does not wait for it.
            false => Nanos::ZERO,
        };
        let asked = self.asked(models);
        let sight = coarse::Sight {
            corrections: &corrections,
            host: host.per_launch(),
            passes: match asked.are_several && view.is_in_place() {
                true => coarse::FEW_PASSES,
                false => coarse::PASSES,
            },
        };
        let config = coarse::config(models, classes, sight, &mut arrivals, &mut open);
        let load = load::of(&config, per_request, &arrivals);
        let mut rules = self.candidates(models);
        let is_first = self.planned.is_none() || self.has_news;
        (self.compared, self.has_news) = (sorted(&rules), false);
        (self.have_loops, self.are_several) = (asked.have_loops, asked.are_several);
        if self.are_several && load >= SHARED_EVENLY {
            rules.retain(|rule| rule::find(rule).is_some());
        }
        if !rules.contains(&self.incumbent.name) {
            self.incumbent.change(&rules[0]);
        }
        let incumbent = &self.incumbent.name;
        let others = rules.iter().filter(|r| *r != incumbent);
        let repeats = match load::is_near_capacity(load, arrivals.len(), self.are_several) {
            true => LONGER,
            false => 1,
        };
        let repeats = match self.history.longest_target() {
            Some(target) if self.bounds_waiting(self.have_loops) => {
                let span = self.history.span();
                repeats.max(bounds::repeats(target, span, arrivals.len()))
            }
            _ => repeats,
        };
        let weighing = self.weighing(&rules);
        self.planned = Some(Seen {
            at: view.now,
            num_arrivals: self.history.num_arrivals(),
            rate: self.history.rate(),
            num_open: self.history.num_open(),
            span: self
                .span_for_bounds()
                .filter(|&span| !asked.have_loops && !self.is_known(span)),
            weighing: weighing.clone(),
        });
        let backlog = self.backlog(load, arrivals.len());
        Some(PlanRequest {
            config,
            arrivals,
            repeats,
            open,
            candidates: [incumbent].into_iter().chain(others).cloned().collect(),
            miss_weight: MISS_WEIGHT,
            weighing,
            per_request,
            backlog,
            budget: self.budget(view.now),
            is_first,
        })
    }

    fn on_planned(&mut self, now: Time, plan: &Plan) {
        self.is_planning = false;
        if !self.has_news {
            self.rests_until = now + plan.rest;
        }
        if std::mem::take(&mut self.is_outdated) || self.is_misfit {
            return;
        }
        let weighing = self.planned.as_ref().map(|seen| &seen.weighing);
        let incumbent = &mut self.incumbent;
        let better = weighing.and_then(|weighing| plan.better(&incumbent.name, weighing));
        if let Some(better) = better {
            incumbent.change(better);
        }
    }
}

impl Adaptive {
    fn start(&mut self, models: &[ModelSpec]) {
        self.corrections.start(models);
        self.rescue.start(models);
        if !self.is_fixed {
            let first = self.rules(models).remove(0);
            self.incumbent.change(&first);
        }
    }

    /// Notes what the classes say that requests are of: others are there for models that nobody asks
    /// for, or were.
    fn look(&mut self, classes: &[Class]) {
        let asked = classes.iter().enumerate();
        let asked = asked.filter(|(c, _)| self.history.has_class(ClassId(*c as u32)));
        let asked: SmallVec<[&Class; 4]> = asked.map(|(_, class)| class).collect();
        self.has_one_class = asked.len() <= 1;
        let late = |class: &&Class| class.late.unwrap_or(self.late);
        let mut lates = asked.iter().map(late);
        self.sheds = lates.clone().any(|l| l == Late::Shed);
        self.refuses = self.sheds || lates.any(|l| l == Late::Refuse);
    }

    /// Sees to it that the incumbent fits what requests ask for, and the plan that is being made.
    fn fit(&mut self, view: &View<'_>) {
        if !std::mem::take(&mut self.is_misfit) {
            return;
        }
        self.look(view.classes());
        let mut rules = self.candidates(view.models());
        // A plan that is being made may know too few, but it compares rules that fit or not.
        self.is_outdated |= self.is_planning && sorted(&rules) != self.compared;
        // As long as no plan was asked for, it is the first for what is known now; a plan for one model
        // says nothing of several.
        let are_several = self.asked(view.models()).are_several;
        let were_several = std::mem::replace(&mut self.are_several, are_several);
        let is_known = self.planned.is_some() && were_several == are_several;
        if !is_known || !rules.contains(&self.incumbent.name) {
            self.incumbent.change(&rules.remove(0));
        }
    }

    /// The first request of a model: what plans found before says nothing of it, so they do not rest for that.
    fn meets(&mut self, model: ModelId) {
        if self.met.len() <= model.index() {
            self.met.resize(model.index() + 1, false);
        }
        if !std::mem::replace(&mut self.met[model.index()], true) {
            (self.has_news, self.met_at) = (true, self.history.num_arrivals());
            self.rests_until = Time::ZERO;
        }
    }

    /// By how much another rule must be cheaper to replace the incumbent.
    fn hysteresis(&self) -> f64 {
        match self.without.hysteresis {
            true => 0.0,
            // Where most of what a rule gains is fewer that are refused, 2 % of the cost are several
            // percent of the throughput.
            false if self.refuses => HYSTERESIS_REFUSING,
            false if self.have_loops && !self.are_several => HYSTERESIS_LOOPS,
            false => HYSTERESIS,
        }
    }

    /// By how many standard errors.
    fn doubt(&self) -> f64 {
        match self.are_several || !self.have_loops || self.without.hysteresis {
            true => 0.0,
            false => DOUBT,
        }
    }

    /// How the rules of a plan are weighed.
    fn weighing(&self, rules: &[String]) -> Weighing {
        let edges = rules.iter().map(|name| {
            let edge = match name.as_str() {
                // It is left for as little as any other.
                LAZY if *name != self.incumbent.name => LAZY_EDGE,
                _ => bounds::edge(name),
            };
            (name.clone(), edge)
        });
        Weighing {
            hysteresis: self.hysteresis(),
            doubt: self.doubt(),
            edges: edges.filter(|e| e.1 != 0.0).collect(),
        }
    }

    /// What a backlog that a plan leaves costs behind it, at such a load, by so many arrivals. Loops take time
    /// that is no backlog, and one loop alone differs little by the rule; where some are refused or shed it
    /// is gone with them.
    fn backlog(&self, load: f64, num_arrivals: usize) -> Backlog {
        if self.refuses || self.without.backlog {
            return Backlog::Ends;
        }
        let lasting = load::lasting(load, num_arrivals);
        match (self.have_loops, self.are_several) {
            (false, _) => Backlog::Lasts(lasting),
            (true, true) => Backlog::Exceeds(lasting),
            (true, false) => Backlog::Ends,
        }
    }

    /// Base rules for these models, and other policies where they fit: those know neither classes
    /// nor priority levels nor shares, and refuse nobody.
    fn candidates(&self, models: &[ModelSpec]) -> Vec<String> {
        let (mut names, asked) = (self.rules(models), self.asked(models));
        let is_plain = self.has_one_class && !self.refuses && !self.history.has_priorities();
        let others = match (asked.have_loops || asked.are_several, is_plain) {
            (false, true) => STATIC_OTHERS,
            (true, true) => LOOP_OTHERS,
            _ => &[],
        };
        if asked.have_loops && self.refuses {
            names.push(self.rule(LOOP_REFUSING));
        }
        if self.bounds_waiting(asked.have_loops) {
            bounds::vary(&mut names, &self.incumbent.name);
        }
        if !self.without.others {
            names.extend(others.iter().map(|o| o.to_string()));
        }
        names
    }

    /// Base rules worth comparing for these models, the first to start with.
    fn rules(&self, models: &[ModelSpec]) -> Vec<String> {
        let asked = self.asked(models);
        let rules = match (asked.have_loops, asked.are_several) {
            (false, false) => STATIC_RULES,
            (false, true) => STATIC_SHARED,
            (true, false) => LOOP_RULES,
            (true, true) => LOOP_SHARED,
        };
        let rules = rules
            .iter()
            .filter(|r| !self.without.caps || !r.contains("cap"));
        rules.map(|rule| self.rule(rule)).collect()
    }

    /// Of the models, those that requests ask for; all as long as there are none.
    fn asked(&self, models: &[ModelSpec]) -> Asked {
        let of = |m: usize| self.history.is_empty() || self.history.has(ModelId(m as u32));
        let asked = models.iter().enumerate().filter(|(m, _)| of(*m));
        let asked = asked.map(|(_, spec)| spec).filter(|spec| !spec.is_vacant());
        Asked {
            have_loops: asked.clone().any(ModelSpec::has_loops),
            are_several: asked.count() > 1,
        }
    }

    /// A base rule with what becomes of those that are too late.
    fn rule(&self, rule: &str) -> String {
        let mut words = self.without.words();
        if !self.without.demotion {
            words.push(self.late.name());
        }
        let (name, numbers) = super::split(rule);
        let words: Vec<&str> = numbers.into_iter().chain(words).collect();
        match words.is_empty() {
            true => name.to_string(),
            false => format!("{name}:{}", words.join("/")),
        }
    }

    /// Whether plans choose a bound of how long those wait that may be shed.
    fn bounds_waiting(&self, have_loops: bool) -> bool {
        let span = self.span_for_bounds().filter(|_| !have_loops);
        span.is_some_and(|span| self.is_known(span))
    }

    /// Of what span arrivals have to be known for that, if some are shed.
    fn span_for_bounds(&self) -> Option<Nanos> {
        let target = || self.history.longest_target();
        let target = (self.sheds && !self.without.within).then(target).flatten();
        target.map(bounds::span)
    }

    fn is_known(&self, span: Nanos) -> bool {
        self.history.span() >= span || self.history.is_full()
    }

    /// Launches that a plan may simulate.
    fn budget(&self, now: Time) -> u64 {
        let budget = self.history.num_arrivals() * PER_ARRIVAL;
        let soon = SOON.max(self.history.since_first(now).0 / LAUNCH.0);
        budget.clamp(LEAST_BUDGET, MOST_BUDGET).min(soon)
    }

    /// Whether it is time for a plan: at 64 arrivals, 16 behind the first of a model that none was asked
    /// for before, and at half as many again, each time, then at every
    /// [`PLAN_EVERY`] or each [`STEADY`], when the rate or the number of open requests has changed, and
    /// when bounds of waiting can be compared for the first time.
    fn is_due(&self, now: Time) -> bool {
        let num = self.history.num_arrivals();
        let Some(seen) = &self.planned else {
            return num >= FIRST_PLAN || (num >= FEW && self.history.span() >= LONG);
        };
        let since = num - seen.num_arrivals;
        if self.has_news && num - self.met_at >= FEW {
            return true;
        }
        let is_steady = seen.num_arrivals >= PLAN_EVERY && now.since(seen.at) < STEADY;
        if since >= (seen.num_arrivals / 2).min(PLAN_EVERY) && !is_steady {
            return true;
        }
        if since >= OPEN_SEEN && seen.span.is_some_and(|span| self.is_known(span)) {
            return true;
        }
        let change = self.history.recent_rate() / seen.rate.max(f64::MIN_POSITIVE);
        if since >= RATE_SEEN && !(1.0 / RATE_CHANGE..=RATE_CHANGE).contains(&change) {
            return true;
        }
        let (was, is) = (seen.num_open as f64, self.history.num_open() as f64);
        since >= OPEN_SEEN && was.max(is) > OPEN_CHANGE * was.min(is) + OPEN_MORE
    }
}
