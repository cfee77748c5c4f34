//! What a simulation of a candidate comes to.

use lazybatch_sla::{Nanos, RequestId, Time};

use super::plan::{Offered, Ran};
use crate::core::{Backlog, PlanRequest};

/// Parts of the past, one behind the other, over which costs are compared.
const PARTS: usize = 8;

/// What came of one candidate.
pub(super) struct Trial {
    pub name: String,
    pub launches: u64,
    /// Mean cost of a request: latency plus weighted misses, in nanoseconds.
    pub cost: f64,
    /// What of it is of requests that arrive in each part of the past.
    parts: [f64; PARTS],
    behind: Behind,
}

impl Trial {
    /// Of a candidate that ran over some of those offered.
    pub fn new(plan: &PlanRequest, name: &str, offered: &Offered, ran: &Ran) -> Self {
        let Offered {
            arrivals, waited, ..
        } = offered;
        let mut trial = Self {
            name: name.to_string(),
            launches: ran.launches,
            cost: 0.0,
            parts: [0.0; PARTS],
            behind: Behind::new(offered, ran),
        };
        let num = ran.ended.len().max(1) as f64;
        let seen = ran.ended.len().saturating_sub(waited.len());
        let past = seen.min(plan.arrivals.len()).max(1);
        for e in &ran.ended {
            let request = &arrivals[e.id.index()].request;
            let before = waited.get(e.id.index()).copied().unwrap_or(Nanos::ZERO);
            let weight = plan.config.classes[request.class.index()].weight / num;
            let mut latency = (before + e.finish.since(request.arrival)).0 as f64;
            let (mut cost, mut missed) = (0.0, 0.0);
            if let Some(sla) = request.sla.map(|s| (before + s).0 as f64) {
                let refused = !e.outcome.is_completed();
                if refused || latency > sla {
                    missed = weight * plan.miss_weight * sla;
                }
                if refused {
                    latency = latency.max(sla);
                }
            }
            cost += weight * latency + missed;
            trial.cost += cost;
            trial.behind.add(e.id, weight, missed);
            // Those that are open at the start are of no part; a past that is repeated is one.
            if let Some(i) = e.id.index().checked_sub(waited.len()) {
                trial.parts[i % past * PARTS / past] += cost;
            }
        }
        trial
    }

    /// Adds to the costs of all candidates what their backlogs cost behind them, where `unseen` arrivals
    /// were not simulated.
    pub fn add_backlogs(trials: &mut [Self], backlog: Backlog, unseen: usize) {
        let backlogs = trials.iter().map(|t| t.behind.backlog);
        let (lasting, least, most) = match backlog {
            Backlog::Ends => return,
            Backlog::Lasts(lasting) => (lasting, 0.0, f64::INFINITY),
            Backlog::Exceeds(lasting) => {
                let least = backlogs.fold(f64::INFINITY, f64::min);
                (lasting, least, unseen as f64)
            }
        };
        for trial in trials {
            trial.cost += trial.behind.cost(lasting, least, most);
        }
    }

    /// Standard error of how much more it costs than another one, as the parts differ: they are as many
    /// samples of a difference that is their sum.
    pub fn error(&self, other: &Self) -> u64 {
        let differences = self.parts.iter().zip(other.parts).map(|(a, b)| a - b);
        let num = PARTS as f64;
        let mean = differences.clone().sum::<f64>() / num;
        let squares = differences.map(|d| (d - mean).powi(2)).sum::<f64>();
        (num * squares / (num - 1.0)).sqrt() as u64
    }
}

/// What is behind the arrivals of a simulation: the backlog that they leave to those that would come.
///
/// When the last has arrived the device has work for a time `w`. While others keep coming it goes in
/// `lasting * w`, and those that come meanwhile, so many in a time as before, wait for what is left of it,
/// `w / 2` in the mean. As many of them miss their targets as in the second half of the simulation. Of
/// [`Backlog::Exceeds`] `w` is the time that is more than the least of all candidates.
/// Arrivals and work flow at their mean rates: the fluid approximation of queues (Newell, "Applications of
/// Queueing Theory").
struct Behind {
    backlog: f64,
    /// Requests in a nanosecond.
    rate: f64,
    num: usize,
    /// Weights of all, and costs of the misses of the second half, both over `num`.
    weight: f64,
    missed: f64,
}

impl Behind {
    fn new(offered: &Offered, ran: &Ran) -> Self {
        let num = ran.ended.len();
        let last = num.checked_sub(1).and_then(|i| offered.arrivals.get(i));
        let last = last.map_or(Time::ZERO, |l| l.request.arrival);
        let end = ran.ended.iter().map(|e| e.finish).max();
        let num_arrived = num.saturating_sub(offered.waited.len());
        Self {
            backlog: end.unwrap_or(last).since(last).0 as f64,
            rate: num_arrived as f64 / last.0.max(1) as f64,
            num,
            weight: 0.0,
            missed: 0.0,
        }
    }

    fn add(&mut self, id: RequestId, weight: f64, missed: f64) {
        self.weight += weight;
        if id.index() >= self.num / 2 {
            self.missed += missed;
        }
    }

    /// What more of it than `least` costs at most so many who come, over the requests of the simulation.
    fn cost(&self, lasting: f64, least: f64, most: f64) -> f64 {
        let backlog = self.backlog - least;
        let num_behind = (self.rate * lasting * backlog).min(most);
        let half = self.num - self.num / 2;
        let missed = self.missed / half.max(1) as f64;
        num_behind * (self.weight / self.num.max(1) as f64 * backlog / 2.0 + missed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::request;
    use super::super::virtual_time::{Ended, SimRequest};
    use super::*;
    use lazybatch_sla::{ClassId, Outcome};

    #[test]
    fn a_cost_counts_latency_and_misses_by_the_weight_of_the_class() {
        let mut plan = request(4, Vec::new());
        let gold = "gold:weight=4".parse().expect("a class");
        plan.config.classes = lazybatch_sla::Class::by_id([gold]);
        plan.arrivals[1].class = ClassId(1);
        let offered = Offered::new(&plan);
        // Two in time after 50, one of each class; then gold after 150, late by its target of 100;
        // then one of the others, refused after 30.
        let ended = |(i, after, outcome): (u64, u64, Outcome)| Ended {
            id: RequestId(i),
            first_launch: None,
            finish: Time(offered.arrivals[i as usize].request.arrival.0 + after),
            outcome,
        };
        let cost = |endings: &[(u64, u64, Outcome)]| {
            let ran = Ran {
                ended: endings.iter().copied().map(ended).collect(),
                launches: 7,
            };
            Trial::new(&plan, "front", &offered, &ran).cost
        };
        let met = [(0, 50, Outcome::Met), (1, 50, Outcome::Met)];
        assert_eq!(cost(&met), (50.0 + 4.0 * 50.0) / 2.0);
        let late = [(1, 150, Outcome::Violated)];
        assert_eq!(cost(&late), 4.0 * (150.0 + 3.0 * 100.0));
        let refused = [(2, 30, Outcome::Shed)];
        assert_eq!(cost(&refused), 100.0 + 3.0 * 100.0);
    }

    #[test]
    fn an_error_is_how_much_the_parts_of_the_past_differ() {
        let mut plan = request(1600, Vec::new());
        plan.arrivals.iter_mut().for_each(|p| p.sla = None);
        plan.repeats = 2;
        let offered = Offered::new(&plan);
        // Every request takes 100, but for those of some eighths of the past.
        let trial = |num: usize, of_parts: [u64; PARTS]| {
            let ended = |(i, a): (usize, &SimRequest)| Ended {
                id: a.request.id,
                first_launch: None,
                finish: a.request.arrival + Nanos(of_parts[i % 1600 * PARTS / 1600]),
                outcome: Outcome::Met,
            };
            let ran = Ran {
                ended: offered.arrivals[..num]
                    .iter()
                    .enumerate()
                    .map(ended)
                    .collect(),
                launches: 7,
            };
            Trial::new(&plan, "front", &offered, &ran)
        };
        let own = trial(3200, [100_000; PARTS]);
        let even = trial(3200, [90_000; PARTS]);
        assert_eq!((own.error(&own), even.error(&own)), (0, 0));
        // Half of them gain 40, the others lose 20: by 8 samples of +-30, the error of their mean of 10 is
        // 30 / sqrt(7).
        let mut of_parts = [60_000; PARTS];
        of_parts[4..].fill(120_000);
        let uneven = trial(3200, of_parts);
        assert_eq!((uneven.cost, even.cost), (90_000.0, 90_000.0));
        let expected = 30_000.0 / 7f64.sqrt();
        assert!((uneven.error(&own) as f64 - expected).abs() < 2.0);
        // Of a first half the parts are those of what was seen.
        let (own, half) = (trial(800, [100_000; PARTS]), trial(800, of_parts));
        assert_eq!((half.cost, half.error(&own)), (60_000.0, 0));
    }

    #[test]
    fn a_backlog_at_the_end_costs_those_that_would_come_behind() {
        // One in 10, to 15,350; they take 50, in time, but those of the last 300, which end at 20,350.
        let mut plan = request(1536, Vec::new());
        let cost = |plan: &PlanRequest, late: u64| {
            let offered = Offered::new(plan);
            let ended = |a: &SimRequest| Ended {
                id: a.request.id,
                first_launch: None,
                finish: match a.request.id.0 >= 1536 - late {
                    true => Time(20_350),
                    false => a.request.arrival + Nanos(50),
                },
                outcome: Outcome::Met,
            };
            let ran = Ran {
                ended: offered.arrivals.iter().map(ended).collect(),
                launches: 7,
            };
            let mut trials = [Trial::new(plan, "front", &offered, &ran)];
            Trial::add_backlogs(&mut trials, plan.backlog, 0);
            trials[0].cost
        };
        let [few, many] = [1, 300].map(|late| cost(&plan, late));
        plan.backlog = Backlog::Lasts(10.0);
        let rate = 1536.0 / 15_350.0;
        let added = |was: f64, late: u64| cost(&plan, late) - was;
        for (was, late) in [(few, 1), (many, 300)] {
            // A backlog of 5,000 lasts for 50,000; 768 ended in the second half, so many of them late.
            let missed = 3.0 * 100.0 * late as f64 / 768.0;
            let expected = rate * 50_000.0 * (2_500.0 + missed) / 1536.0;
            let added = added(was, late);
            assert!((added - expected).abs() < 1e-6, "{added} {expected}");
        }
        // By weight: all count as four.
        let gold = "gold:weight=4".parse().expect("a class");
        plan.config.classes = lazybatch_sla::Class::by_id([gold]);
        let (heavy, light) = (ClassId(1), ClassId(0));
        let mut of = |class| {
            plan.arrivals.iter_mut().for_each(|p| p.class = class);
            cost(&plan, 300)
        };
        assert!((of(heavy) / of(light) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn with_loops_what_exceeds_the_least_backlog_costs_those_that_were_not_simulated() {
        // One in 10, to 15,350; what is left then takes each candidate so long.
        let plan = request(1536, Vec::new());
        let offered = Offered::new(&plan);
        let trial = |backlog: u64| {
            let ended = |a: &SimRequest| Ended {
                id: a.request.id,
                first_launch: None,
                finish: a.request.arrival.max(Time(15_349)) + Nanos(1 + backlog),
                outcome: Outcome::Violated,
            };
            let ran = Ran {
                ended: offered.arrivals.iter().map(ended).collect(),
                launches: 7,
            };
            Trial::new(&plan, "front", &offered, &ran)
        };
        let added = |unseen: usize| {
            let mut trials = [800, 300, 500].map(trial);
            let before = trials.each_ref().map(|t| t.cost);
            Trial::add_backlogs(&mut trials, Backlog::Exceeds(4.0), unseen);
            [0, 1, 2].map(|i| trials[i].cost - before[i])
        };
        // All miss a target of 100. 500 more last for 2,000, in which 200 come, and 200 for 800, in which 80.
        let each = |more: f64| more / 2.0 + 300.0;
        for (unseen, [longest, longer]) in
            [(1000, [200.0, 80.0]), (100, [100.0, 80.0]), (0, [0.0; 2])]
        {
            let rate = 1536.0 / 15_350.0 / 0.1;
            let num = |come: f64| (come * rate).min(unseen as f64);
            let expected = [num(longest) * each(500.0), 0.0, num(longer) * each(200.0)];
            for (added, expected) in added(unseen).into_iter().zip(expected) {
                let expected = expected / 1536.0;
                assert!(
                    (added - expected).abs() < 1e-6,
                    "{unseen}: {added} {expected}"
                );
            }
        }
    }

    #[test]
    fn who_is_open_at_the_start_does_not_count_as_coming() {
        let plan = request(1536, vec![(3, Nanos(30)); 64]);
        let offered = Offered::new(&plan);
        let ended = |a: &SimRequest| Ended {
            id: a.request.id,
            first_launch: None,
            finish: Time(15_350 + 100),
            outcome: Outcome::Met,
        };
        let ran = Ran {
            ended: offered.arrivals.iter().map(ended).collect(),
            launches: 7,
        };
        let behind = Behind::new(&offered, &ran);
        assert_eq!((behind.num, behind.backlog), (1600, 100.0));
        assert_eq!(behind.rate, 1536.0 / 15_350.0);
        // Nothing was simulated.
        let none = Ran {
            ended: Vec::new(),
            launches: 0,
        };
        let mut trials = [Trial::new(&plan, "front", &offered, &none)];
        Trial::add_backlogs(&mut trials, Backlog::Lasts(1.0), 0);
        assert_eq!(trials[0].cost, 0.0);
    }
}
