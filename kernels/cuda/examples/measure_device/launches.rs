//! What launches cost, on a stack of linear layers of bf16 weights: the host's time, the GPU's idle
//! time between them, a merge, the wait of one that preempts, and own products against cuBLASLt.

use std::time::Duration;

use crate::stack::{Sizes, Stack};
use crate::{Failure, Report, now, percentile};

/// How much is measured.
pub struct Amount {
    /// Of the stack.
    pub sizes: Sizes,
    /// Requests of a large sub-batch, a multiple of two.
    pub large: usize,
    /// Launches of a measurement.
    pub launches: usize,
    /// Merges and preemptions.
    pub events: usize,
    /// Launches until what comes again is captured, and the clock of a GPU is up.
    warm: usize,
}

impl Amount {
    /// On a GPU, or in a dry run.
    pub fn of(report: Report) -> Self {
        if report.is_dry {
            return Self {
                sizes: Sizes {
                    d: 32,
                    layers: 4,
                    segments: 2,
                    passes: 4096,
                },
                large: 8,
                launches: 8,
                events: 2,
                warm: 4,
            };
        }
        Self {
            sizes: Sizes {
                d: 4096,
                layers: 16,
                segments: 4,
                passes: 4096,
            },
            large: 128,
            launches: 800,
            events: 200,
            warm: 40,
        }
    }
}

/// All of it.
pub fn run(report: Report) -> Result<(), Failure> {
    let amount = Amount::of(report);
    // Two in flight at most.
    let mut own = Stack::new(amount.sizes, true, 2)?;
    issuing(report, &amount, &mut own)?;
    making(report, &amount, &mut own)?;
    idle(report, &amount, &mut own)?;
    merging(report, &amount, &mut own)?;
    preempting(report, &amount, &mut own)?;
    let of_own = passes(&amount, &mut own)?;
    report.line("launches of own products, by graphs", &own.graphs(), &[])?;
    drop(own);
    let mut library = Stack::new(amount.sizes, false, 2)?;
    let of_library = passes(&amount, &mut library)?;
    report.line("launches of cuBLASLt's, by graphs", &library.graphs(), &[])?;
    drop(library);
    for (own, library) in of_own.into_iter().zip(of_library) {
        let sizes = [
            ("rows", own.0.into()),
            ("layers", amount.sizes.layers.into()),
        ];
        let figures = [
            ("own_us", own.1),
            ("cublaslt_us", library.1),
            ("own_over_cublaslt", own.1 / library.1),
        ];
        report.line("cost of determinism, stack of layers", &sizes, &figures)?;
    }
    Ok(())
}

fn warm_up(stack: &mut Stack, amount: &Amount, rows: usize) -> Result<(), Failure> {
    let mut batch = stack.open(rows)?;
    for _ in 0..amount.warm {
        stack.launch(&mut batch)?;
        stack.finish()?;
    }
    stack.close(batch);
    stack.take_times();
    Ok(())
}

/// Host time of a segment that comes for the first time, kernel by kernel, of one that comes again, which
/// is captured and then run by its graph, and of the graph's next run, over several sizes.
fn making(report: Report, amount: &Amount, stack: &mut Stack) -> Result<(), Failure> {
    let timed = |into: &mut Vec<f64>, did: &mut dyn FnMut() -> Result<(), Failure>| {
        let start = now();
        did()?;
        into.push(start.elapsed().as_secs_f64() * 1e6);
        Ok::<_, Failure>(())
    };
    let (mut first, mut captured, mut replayed) = (Vec::new(), Vec::new(), Vec::new());
    // Others than are captured ahead, or measured elsewhere.
    for rows in (20..=28).step_by(4).chain([40, 48, 56]) {
        let rows = if report.is_dry { rows / 4 } else { rows };
        let mut batch = stack.open(rows)?;
        for pass in 0..3 {
            for _ in 0..amount.sizes.segments {
                let into = match pass {
                    0 => &mut first,
                    1 => &mut captured,
                    _ => &mut replayed,
                };
                timed(into, &mut || stack.launch(&mut batch))?;
                stack.finish()?;
            }
        }
        stack.close(batch);
    }
    let layers = amount.sizes.layers / amount.sizes.segments;
    let captures = captured.len() as f64;
    let figures = [
        ("first_us", percentile(&mut first, 50)),
        ("captured_and_run_us", percentile(&mut captured, 50)),
        ("captures", captures),
        ("replay_us", percentile(&mut replayed, 50)),
    ];
    report.line(
        "host time of a segment that is new",
        &[("layers", layers.into())],
        &figures,
    )
}

/// Host time of issuing a segment that was captured before.
fn issuing(report: Report, amount: &Amount, stack: &mut Stack) -> Result<(), Failure> {
    for rows in [1, amount.large] {
        warm_up(stack, amount, rows)?;
        let mut batch = stack.open(rows)?;
        let mut issued = Vec::new();
        for _ in 0..amount.launches {
            let start = now();
            stack.launch(&mut batch)?;
            issued.push(start.elapsed().as_secs_f64() * 1e6);
            stack.finish()?;
        }
        stack.close(batch);
        let layers = amount.sizes.layers / amount.sizes.segments;
        let sizes = [("rows", rows.into()), ("layers", layers.into())];
        let figures = [
            ("us", percentile(&mut issued, 50)),
            ("us_p99", percentile(&mut issued, 99)),
        ];
        report.line("host time of a segment's launch", &sizes, &figures)?;
    }
    Ok(())
}

/// Share of time in which the GPU has nothing to do, while there is always more.
fn idle(report: Report, amount: &Amount, stack: &mut Stack) -> Result<(), Failure> {
    for depth in [1, 2] {
        for rows in [1, amount.large] {
            warm_up(stack, amount, rows)?;
            let mut batch = stack.open(rows)?;
            stack.take_times();
            for _ in 0..depth - 1 {
                stack.launch(&mut batch)?;
            }
            for _ in 0..amount.launches {
                stack.launch(&mut batch)?;
                stack.finish()?;
            }
            for _ in 0..depth - 1 {
                stack.finish()?;
            }
            stack.close(batch);
            let times = stack.take_times();
            // What the first waited for is not load.
            let times = times.get(depth..).unwrap_or_default();
            let busy: f64 = times.iter().map(|t| t.busy_us).sum();
            let idle: f64 = times.iter().map(|t| t.idle_us).sum();
            let mut gaps: Vec<f64> = times.iter().map(|t| t.idle_us).collect();
            let sizes = [("rows", rows.into()), ("in_flight", depth.into())];
            let figures = [
                ("idle_share", idle / (busy + idle)),
                ("gap_us", percentile(&mut gaps, 50)),
                ("gap_us_p99", percentile(&mut gaps, 99)),
                ("segment_us", busy / times.len() as f64),
            ];
            report.line("idle between segments, without scheduler", &sizes, &figures)?;
        }
    }
    Ok(())
}

/// The second segment of two sub-batches that merge in front of it, over that of one as large.
fn merging(report: Report, amount: &Amount, stack: &mut Stack) -> Result<(), Failure> {
    let half = amount.large / 2;
    let (mut merged, mut together) = (Vec::new(), Vec::new());
    let unused = amount.warm / 4;
    for round in 0..amount.events + unused {
        let is_warm = round >= unused;
        let last = |stack: &mut Stack, into: &mut Vec<f64>| {
            let times = stack.take_times();
            if let (true, Some(time)) = (is_warm, times.last()) {
                into.push(time.busy_us);
            }
        };
        let (mut a, mut b) = (stack.open(half)?, stack.open(half)?);
        for batch in [&mut a, &mut b] {
            stack.launch(batch)?;
            stack.finish()?;
        }
        let mut both = a.merged(b);
        stack.launch(&mut both)?;
        stack.finish()?;
        last(stack, &mut merged);
        // The pass to its end, so that nothing is live.
        while !both.is_at_head() {
            stack.launch(&mut both)?;
            stack.finish()?;
        }
        for _ in 0..2 {
            stack.launch(&mut both)?;
            stack.finish()?;
        }
        last(stack, &mut together);
        stack.close(both);
    }
    let (merged, together) = (percentile(&mut merged, 50), percentile(&mut together, 50));
    let sizes = [("rows", amount.large.into())];
    let figures = [
        ("us", merged - together),
        ("of_segment", (merged - together) / together),
        ("segment_us", together),
    ];
    report.line("merge of two sub-batches", &sizes, &figures)
}

/// How long one that preempts waits for the launches that are in flight, in segments.
fn preempting(report: Report, amount: &Amount, stack: &mut Stack) -> Result<(), Failure> {
    for depth in [1, 2] {
        warm_up(stack, amount, 1)?;
        warm_up(stack, amount, amount.large)?;
        let (mut load, mut other) = (stack.open(amount.large)?, stack.open(1)?);
        let (mut waits, mut segments) = (Vec::new(), Vec::new());
        let mut state = 7u64;
        for _ in 0..amount.events {
            for _ in 0..depth {
                stack.launch(&mut load)?;
            }
            stack.take_times();
            // Arrives after some segments and some part of one.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let arrives = now() + Duration::from_nanos((state >> 33) % 1_000_000);
            // The place of the first launch that ends behind its arrival is its own.
            loop {
                if stack.poll()? {
                    if now() >= arrives {
                        break;
                    }
                    stack.launch(&mut load)?;
                }
            }
            stack.launch(&mut other)?;
            for _ in 0..depth {
                stack.finish()?;
            }
            let waited = now() - arrives;
            let times = stack.take_times();
            let (own, loads) = times.split_last().ok_or("no launch was timed")?;
            segments.extend(loads.iter().map(|t| t.busy_us));
            waits.push(waited.as_secs_f64() * 1e6 - own.busy_us);
        }
        stack.close(load);
        stack.close(other);
        let segment = percentile(&mut segments, 50);
        let mut in_segments: Vec<f64> = waits.iter().map(|w| w / segment).collect();
        let sizes = [("rows", amount.large.into()), ("in_flight", depth.into())];
        let figures = [
            ("segments_p50", percentile(&mut in_segments, 50)),
            ("segments_p99", percentile(&mut in_segments, 99)),
            ("segment_us", segment),
        ];
        report.line(
            "wait of one that preempts, without scheduler",
            &sizes,
            &figures,
        )?;
    }
    Ok(())
}

/// Microseconds of a pass through all layers, by rows.
fn passes(amount: &Amount, stack: &mut Stack) -> Result<Vec<(usize, f64)>, Failure> {
    let mut all = Vec::new();
    for rows in [1, amount.large / 4, amount.large] {
        warm_up(stack, amount, rows)?;
        let mut batch = stack.open(rows)?;
        stack.take_times();
        let passes = amount.launches / amount.sizes.segments;
        for _ in 0..passes * amount.sizes.segments {
            stack.launch(&mut batch)?;
            stack.finish()?;
        }
        stack.close(batch);
        let busy: f64 = stack.take_times().iter().map(|t| t.busy_us).sum();
        all.push((rows, busy / passes as f64));
    }
    Ok(all)
}
