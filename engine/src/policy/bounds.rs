//! For how long those wait that may be shed: the bounds that plans of `adaptive` choose from.
//!
//! Near capacity and beyond it a queue as long as the target allows is worked off no faster than a short
//! one, and all in it wait for nearly as long as their target. A rule with a bound (`withinP`, `base.rs`)
//! keeps it shorter, and sheds some that could be in time. Which one is worth that, plans find out.

use lazybatch_sla::Nanos;

use super::rule;

/// Shares of the target, in percent, within which those that may be shed are to be answered, and by how
/// much each must be cheaper than all others: the less it is the more are shed that could be in time.
const SHARES: [(u32, f64); 5] = [(100, 0.0), (70, 0.02), (50, 0.03), (35, 0.05), (25, 0.07)];
/// Plans that compare them look so many of the longest targets ahead: within one or two, whoever waits
/// longest may still be in time, as none come behind.
const TARGETS: u64 = 8;
/// But at no more arrivals than these.
const MOST_ARRIVALS: usize = 16_384;
/// They compare none before arrivals are known for so many targets: a burst may be over then.
const KNOWN_TARGETS: u64 = 2;

/// Of what span arrivals have to be known, where that is the longest target.
pub(super) fn span(target: Nanos) -> Nanos {
    Nanos(target.0.saturating_mul(KNOWN_TARGETS))
}

/// How often a plan takes so many arrivals of such a span, one time after another.
pub(super) fn repeats(target: Nanos, span: Nanos, num_arrivals: usize) -> usize {
    let repeats = TARGETS.saturating_mul(target.0) / span.0.max(1);
    (repeats as usize).min(MOST_ARRIVALS / num_arrivals.max(1))
}

/// Gives all rules the bound of the incumbent, and adds the incumbent with every other one, or the first
/// if it is none of them.
pub(super) fn vary(names: &mut Vec<String>, incumbent: &str) {
    let own = share(incumbent);
    for name in &mut *names {
        *name = rule::within(name, own);
    }
    let base = names.iter().find(|n| *n == incumbent).or(names.first());
    let Some(base) = base.cloned() else { return };
    let others = SHARES.iter().map(|s| s.0).filter(|&share| share != own);
    names.extend(others.map(|share| rule::within(&base, share)));
}

/// By how much its bound makes a rule dearer.
pub(super) fn edge(name: &str) -> f64 {
    let own = share(name);
    let edge = SHARES.iter().find(|s| s.0 == own).map(|s| s.1);
    edge.unwrap_or(0.0)
}

/// The share of its target, in percent, within which a rule answers those that may be shed.
fn share(name: &str) -> u32 {
    rule::find(name).map_or(100, |rule| (rule.within * 100.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rules_have_the_bound_of_the_incumbent_which_is_there_with_every_other() {
        let names = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let mut varied = names(&["front:shed", "join:1/cap95/shed"]);
        vary(&mut varied, "join:1/cap95/within50/shed");
        let expected = names(&[
            "front:within50/shed",
            "join:1/cap95/within50/shed",
            "join:1/cap95/shed",
            "join:1/cap95/within70/shed",
            "join:1/cap95/within35/shed",
            "join:1/cap95/within25/shed",
        ]);
        assert_eq!(varied, expected);
        assert!(varied.iter().all(|name| rule::find(name).is_some()));
        let edges = |names: &[String]| names.iter().map(|n| edge(n)).collect::<Vec<_>>();
        assert_eq!(edges(&varied), [0.03, 0.03, 0.0, 0.02, 0.05, 0.07]);
        // Of an incumbent that is not one of them, or is another policy, the first is.
        for other in ["balance:4/shed", "edf"] {
            let mut varied = names(&["front", "join:1/shed"]);
            vary(&mut varied, other);
            assert_eq!(varied[2], "front:within70", "{other}");
            assert_eq!(varied.len(), 6);
        }
    }

    #[test]
    fn plans_look_eight_targets_ahead_or_at_so_many_arrivals() {
        let ms = Nanos::from_ms;
        assert_eq!(repeats(ms(100), ms(100), 100), 8);
        assert_eq!(repeats(ms(100), ms(1000), 100), 0);
        assert_eq!(repeats(ms(100), ms(100), 4096), 4);
        assert_eq!(repeats(ms(100), Nanos::ZERO, 0), 16_384);
        assert_eq!(span(ms(100)), ms(200));
        assert_eq!(span(Nanos(u64::MAX)), Nanos(u64::MAX));
    }
}
