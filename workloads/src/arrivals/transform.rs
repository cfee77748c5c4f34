//! What can be done to arrivals that were read or drawn: scale the rate, cut a window, clip
//! lengths.

use lazybatch_sla::{Nanos, Time};

use super::{Arrival, mean_rate};
use crate::error::{Error, Result};

/// Stretches or squeezes the gaps so that the mean rate ([`mean_rate`]) becomes `rate_rps`; the
/// first arrival moves to time 0 and the order stays.
///
/// # Errors
/// [`Error::Parameter`] when the rate is not a positive number or the arrivals have no rate.
pub fn scale_to_rate(arrivals: &mut [Arrival], rate_rps: f64) -> Result<()> {
    if !(rate_rps.is_finite() && rate_rps > 0.0) {
        let expected = "a finite number above 0";
        return Err(Error::parameter(
            "target rate",
            expected,
            rate_rps.to_string(),
        ));
    }
    let Some(now_rps) = mean_rate(arrivals) else {
        let expected = "at least two arrivals at different times";
        let got = format!("{} arrivals over no time", arrivals.len());
        return Err(Error::parameter("arrivals to scale", expected, got));
    };
    let first = arrivals[0].at;
    let factor = now_rps / rate_rps;
    for arrival in arrivals {
        let scaled = arrival.at.since(first).0 as f64 * factor;
        arrival.at = Time(scaled.round() as u64);
    }
    Ok(())
}

/// A stretch of `num` arrivals, another one for each seed as long as there are others, at a mean
/// rate of `rate_rps`.
///
/// # Errors
/// As [`scale_to_rate`].
pub fn stretch(all: &[Arrival], num: usize, rate_rps: f64, seed: u64) -> Result<Vec<Arrival>> {
    let stretches = (all.len() / num.max(1)).max(1);
    let start = (seed.wrapping_sub(1) % stretches as u64) as usize * num;
    let mut cut = all[start.min(all.len())..(start + num).min(all.len())].to_vec();
    scale_to_rate(&mut cut, rate_rps)?;
    Ok(cut)
}

/// The arrivals in `[from, from + span)`, with `from` as the new time 0.
pub fn window(arrivals: &[Arrival], from: Time, span: Nanos) -> Vec<Arrival> {
    let until = from + span;
    let start = arrivals.partition_point(|a| a.at < from);
    let end = arrivals.partition_point(|a| a.at < until);
    let mut cut = arrivals[start..end].to_vec();
    for arrival in &mut cut {
        arrival.at = Time(arrival.at.since(from).0);
    }
    cut
}

/// Shortens input and output lengths that exceed a model's bounds; returns how many requests
/// were changed.
pub fn clip_lengths(arrivals: &mut [Arrival], max_input: u32, max_output: u32) -> usize {
    let mut num_clipped = 0;
    for arrival in arrivals {
        if arrival.input_len > max_input || arrival.output_len > max_output {
            arrival.input_len = arrival.input_len.min(max_input);
            arrival.output_len = arrival.output_len.min(max_output);
            num_clipped += 1;
        }
    }
    num_clipped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(times_us: &[u64]) -> Vec<Arrival> {
        times_us
            .iter()
            .map(|us| Arrival::new(Time(us * 1000), "m", 10, 20))
            .collect()
    }

    fn us(arrivals: &[Arrival]) -> Vec<u64> {
        arrivals.iter().map(|a| a.at.0 / 1000).collect()
    }

    #[test]
    fn scaling_reaches_the_target_and_keeps_the_shape() {
        let mut arrivals = at(&[1000, 1000, 1500, 3000]);
        scale_to_rate(&mut arrivals, 3.0).unwrap();
        assert_eq!(us(&arrivals), [0, 0, 250_000, 1_000_000]);
        assert_eq!(mean_rate(&arrivals), Some(3.0));
    }

    #[test]
    fn seeds_take_other_stretches_until_there_are_none() {
        let all = at(&[0, 10, 100, 130, 131, 140]);
        let stretch = |seed| us(&stretch(&all, 2, 1.0, seed).unwrap());
        assert_eq!(
            (stretch(1), stretch(4)),
            (vec![0, 1_000_000], vec![0, 1_000_000])
        );
        let num = |num, seed| super::stretch(&all, num, 1.0, seed).unwrap().len();
        assert_eq!((num(4, 2), num(9, 3)), (4, 6));
        let third = super::stretch(&all, 3, 2.0, 2).unwrap();
        assert_eq!(us(&third), [0, 100_000, 1_000_000]);
    }

    #[test]
    fn what_has_no_rate_cannot_be_scaled() {
        for mut arrivals in [at(&[]), at(&[5]), at(&[5, 5])] {
            let message = scale_to_rate(&mut arrivals, 1.0).unwrap_err().to_string();
            assert!(message.contains("at least two arrivals"), "{message}");
        }
        let message = scale_to_rate(&mut at(&[1, 2]), 0.0)
            .unwrap_err()
            .to_string();
        assert!(message.starts_with("target rate"), "{message}");
    }

    #[test]
    fn a_window_is_half_open_and_starts_at_zero() {
        let arrivals = at(&[0, 10, 10, 15, 20]);
        assert_eq!(
            us(&window(&arrivals, Time(10_000), Nanos(10_000))),
            [0, 0, 5]
        );
        assert!(window(&arrivals, Time(21_000), Nanos(10_000)).is_empty());
        assert_eq!(window(&arrivals, Time::ZERO, Nanos(u64::MAX)).len(), 5);
    }

    #[test]
    fn clipping_counts_what_it_changed() {
        let mut arrivals = at(&[0, 1]);
        arrivals[1].input_len = 5;
        arrivals[1].output_len = 5;
        assert_eq!(clip_lengths(&mut arrivals, 8, 15), 1);
        assert_eq!((arrivals[0].input_len, arrivals[0].output_len), (8, 15));
        assert_eq!((arrivals[1].input_len, arrivals[1].output_len), (5, 5));
    }
}
