//! Mean, dispersion and seed equality of the arrival processes.

use super::*;

/// Gaps in seconds of the first `n` arrivals.
fn gaps(process: &Process, seed: u64, n: usize) -> Vec<f64> {
    let times: Vec<Time> = process.times(seed).unwrap().take(n + 1).collect();
    times
        .windows(2)
        .map(|w| w[1].since(w[0]).0 as f64 / 1e9)
        .collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn cv(values: &[f64]) -> f64 {
    let m = mean(values);
    let variance = values.iter().map(|v| (v - m) * (v - m)).sum::<f64>() / values.len() as f64;
    variance.sqrt() / m
}

/// Variance over mean of the arrivals counted in windows: 1 for Poisson.
fn dispersion(process: &Process, seed: u64, window_s: f64, num_windows: usize) -> f64 {
    let mut counts = vec![0.0; num_windows];
    for at in process.times(seed).unwrap() {
        let window = (at.0 as f64 / 1e9 / window_s) as usize;
        if window >= num_windows {
            break;
        }
        counts[window] += 1.0;
    }
    let m = mean(&counts);
    counts.iter().map(|c| (c - m) * (c - m)).sum::<f64>() / num_windows as f64 / m
}

fn close(got: f64, want: f64, relative: f64) {
    assert!(
        (got - want).abs() <= relative * want,
        "got {got}, want {want} within {relative}"
    );
}

fn on_off() -> Process {
    Process::OnOff {
        on_rps: 900.0,
        off_rps: 100.0,
        mean_on: Nanos::from_ms(100),
        mean_off: Nanos::from_ms(300),
    }
}

fn piecewise() -> Process {
    let piece = |ms, rate_rps| Piece {
        lasts: Nanos::from_ms(ms),
        rate_rps,
    };
    Process::Piecewise {
        pieces: vec![piece(1000, 100.0), piece(500, 0.0), piece(500, 600.0)],
    }
}

#[test]
fn constant_gaps_do_not_drift() {
    let times: Vec<Time> = Process::Constant { rate_rps: 3.0 }
        .times(1)
        .unwrap()
        .take(3001)
        .collect();
    assert_eq!(times[0], Time(0));
    assert_eq!(times[1], Time(333_333_333));
    assert_eq!(times[2], Time(666_666_667));
    assert_eq!(times[3000], Time(1_000_000_000_000));
}

#[test]
fn poisson_has_its_mean_and_dispersion() {
    let process = Process::Poisson { rate_rps: 500.0 };
    let gaps = gaps(&process, 7, 200_000);
    close(mean(&gaps), 1.0 / 500.0, 0.01);
    close(cv(&gaps), 1.0, 0.01);
    close(dispersion(&process, 8, 0.1, 5000), 1.0, 0.08);
    // Exponential gaps: 63.2 % are shorter than the mean.
    let short = gaps.iter().filter(|g| **g < 1.0 / 500.0).count() as f64;
    close(short / 200_000.0, 1.0 - (-1.0_f64).exp(), 0.01);
}

#[test]
fn gamma_has_its_mean_and_variation() {
    for want_cv in [0.25, 1.0, 3.0] {
        let gaps = gaps(
            &Process::Gamma {
                rate_rps: 50.0,
                cv: want_cv,
            },
            11,
            200_000,
        );
        close(mean(&gaps), 1.0 / 50.0, 0.03);
        close(cv(&gaps), want_cv, 0.03);
    }
}

#[test]
fn on_off_has_its_mean_and_is_bursty() {
    let process = on_off();
    close(process.mean_rate_rps(), 300.0, 1e-12);
    close(mean(&gaps(&process, 3, 400_000)), 1.0 / 300.0, 0.03);
    // Counts per 100 ms mix Poisson counts of about 90 and of about 10.
    assert!(dispersion(&process, 4, 0.1, 5000) > 10.0);
}

#[test]
fn piecewise_follows_its_rates_and_repeats() {
    let mut counts = [0_u32; 3];
    let num_cycles = 500;
    for at in piecewise().times(5).unwrap() {
        if at.0 >= num_cycles * 2_000_000_000 {
            break;
        }
        counts[match at.0 % 2_000_000_000 {
            0..1_000_000_000 => 0,
            1_000_000_000..1_500_000_000 => 1,
            _ => 2,
        }] += 1;
    }
    close(f64::from(counts[0]) / num_cycles as f64, 100.0, 0.02);
    assert_eq!(counts[1], 0);
    close(f64::from(counts[2]) / num_cycles as f64, 300.0, 0.02);
}

#[test]
fn a_seed_names_one_sequence() {
    let gamma = Process::Gamma {
        rate_rps: 50.0,
        cv: 2.0,
    };
    for process in [
        Process::Poisson { rate_rps: 50.0 },
        gamma,
        on_off(),
        piecewise(),
    ] {
        let take = |seed| process.times(seed).unwrap().take(1000).collect::<Vec<_>>();
        assert_eq!(take(42), take(42), "{process}");
        assert_ne!(take(42), take(43), "{process}");
        assert!(take(42).is_sorted(), "{process}");
    }
}

#[test]
fn scaling_changes_the_mean_rate_alone() {
    for process in [Process::Poisson { rate_rps: 5.0 }, on_off(), piecewise()] {
        close(process.clone().scaled_to(77.0).mean_rate_rps(), 77.0, 1e-12);
    }
}

#[test]
fn spellings_round_trip() {
    for text in [
        "constant:10",
        "poisson:0.5",
        "gamma:20:2",
        "onoff:90:0:100:300",
    ] {
        assert_eq!(text.parse::<Process>().unwrap().to_string(), text);
    }
    assert_eq!(
        "piecewise:1000@100,500@0,500@600"
            .parse::<Process>()
            .unwrap(),
        piecewise()
    );
}

#[test]
fn bad_parameters_are_named() {
    let message = |text: &str| text.parse::<Process>().unwrap_err().to_string();
    assert!(message("poisson:fast").contains("got `poisson:fast`"));
    assert!(message("poisson").contains("constant:RATE"));
    assert!(message("poisson:0").starts_with("arrival rate: expected a finite number above 0"));
    assert!(message("poisson:nan").contains("got NaN"));
    assert!(message("gamma:10:-1").starts_with("coefficient of variation"));
    assert!(message("onoff:10:-1:5:5").starts_with("arrival rate while off"));
    assert!(message("piecewise:10@0").contains("over all stretches"));
}
