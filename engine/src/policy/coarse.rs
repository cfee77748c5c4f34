//! Models as plans see them: fewer segments, fewer and longer passes, corrected tables.

use std::ops::Range;
use std::sync::Arc;

use lazybatch_graph::Repeat;
use lazybatch_sla::{Class, Nanos, OutputLen, Progress, SegmentRanges};

use crate::core::{BlockSpec, CoreConfig, ModelSpec, Open, Past, Place};

/// Segments that a block which runs once has in plans.
const SEGMENTS: u32 = 8;
/// Passes, over all loops, that the mean request has in plans, about, if it has more; but in no
/// loop fewer than [`LEAST_PASSES`].
pub(super) const PASSES: f64 = 64.0;
/// The same of one of several models whose device leaves little time for plans: one that looks far
/// ahead is worth more there than one that looks close.
pub(super) const FEW_PASSES: f64 = 16.0;
const LEAST_PASSES: f64 = 4.0;
/// Most segments that a pass of a loop or another block has in plans, where another model's requests
/// might have to wait for its end.
const MOST_SEGMENTS: u32 = 16;
/// Most passes that are one, as long as no request has more than so many behind it.
const MOST_JOINED: f64 = 64.0;
/// Most passes of a request in plans: a length that nobody has seen yet may be guessed as any.
const MOST_PASSES: u32 = 4096;

/// How plans see models.
#[derive(Clone, Copy)]
pub(super) struct Sight<'a> {
    /// Factors of the tables by batch size, for each model and block.
    pub corrections: &'a [Vec<Vec<f64>>],
    /// What a launch takes of the host.
    pub host: Nanos,
    /// [`PASSES`] or [`FEW_PASSES`].
    pub passes: f64,
}

/// The models with tables corrected and, for each launch, with what it takes of the host: a pass of a
/// loop in one segment, other blocks in a few, where there are several models in as many as leave none
/// longer than the shortest request of any, or [`MOST_SEGMENTS`]; where requests pass loops often,
/// several passes in one. Output lengths and bounds of `arrivals` and `open` are changed accordingly,
/// and the places of `open`.
pub(super) fn config(
    models: &[ModelSpec],
    classes: &[Class],
    sight: Sight<'_>,
    arrivals: &mut [Past],
    open: &mut [Open],
) -> CoreConfig {
    let strides: Vec<Stride> = (models.iter().enumerate())
        .map(|(m, spec)| {
            Stride::of(
                spec,
                arrivals.iter().filter(|p| p.model.index() == m),
                sight.passes,
            )
        })
        .collect();
    let longest = longest(models, arrivals);
    let groups: Vec<SegmentRanges> = models
        .iter()
        .zip(&strides)
        .map(|(spec, stride)| groups(spec, stride.joined, longest))
        .collect();
    let joined = |past: &Past| strides[past.model.index()].joined;
    for Open { past, place, .. } in &mut *open {
        let joined = joined(past);
        if let Some(place) = place {
            let m = past.model.index();
            let repeat = models[m].blocks[place.block as usize].repeat;
            let groups = &groups[m][place.block as usize];
            *place = coarse_place((repeat, groups), past, place, joined);
        }
        shorten(past, joined);
    }
    for past in arrivals {
        let joined = joined(past);
        shorten(past, joined);
    }
    let specs = models
        .iter()
        .zip(strides)
        .zip(groups)
        .zip(sight.corrections);
    let specs = specs.map(|(((m, s), g), c)| coarse(m, &s, &g, (c, sight.host)));
    CoreConfig {
        classes: classes.to_vec(),
        ..CoreConfig::new(specs.collect())
    }
}

/// So many passes are one.
fn shorten(past: &mut Past, joined: u32) {
    past.output_len = past.output_len.div_ceil(joined);
    past.max_steps = past.max_steps.map(|most| most.div_ceil(joined));
}

fn coarse(
    spec: &ModelSpec,
    stride: &Stride,
    groups: &SegmentRanges,
    (corrections, host): (&[Vec<f64>], Nanos),
) -> ModelSpec {
    let longer: Vec<Vec<f64>> = stride.longer.iter().map(|&l| vec![l]).collect();
    let mut coarse = spec.clone();
    for (block, groups) in coarse.blocks.iter_mut().zip(groups) {
        let nodes = |g: &Range<u32>| {
            let last = block.segments[g.end as usize - 1].end;
            block.segments[g.start as usize].start..last
        };
        block.segments = groups.iter().map(nodes).collect();
        block.repeat = stride.repeat(block.repeat);
    }
    let repeats: Vec<Repeat> = coarse.blocks.iter().map(|b| b.repeat).collect();
    let beside = |block: usize, segment: usize| {
        let launches = groups[block][segment].len() as f64 * stride.longer[block];
        Nanos((host.0 as f64 * launches).round() as u64)
    };
    let table = spec.table.coarse(groups).scaled(corrections);
    let table = table.scaled(&longer).delayed(beside);
    coarse.table = Arc::new(table.repeated(&repeats));
    coarse.output_len_p90 = spec.output_len_p90.div_ceil(stride.joined);
    coarse.resident = true;
    coarse
}

/// The nearest place behind so many passes as one, at the head of a pass or of a group of segments;
/// of a loop one pass is left at the least.
fn coarse_place(
    (repeat, groups): (Repeat, &[Range<u32>]),
    past: &Past,
    place: &Place,
    joined: u32,
) -> Place {
    let segment = || groups.iter().position(|g| g.contains(&place.segment));
    let segment = || segment().unwrap_or(0) as u32;
    let last = passes(past, repeat, joined).saturating_sub(1);
    let (segment, step) = match repeat {
        Repeat::Once => (segment(), place.step),
        _ if joined == 1 && groups.len() > 1 => (segment(), place.step.min(last)),
        _ => (0, ((place.step + joined / 2) / joined).min(last)),
    };
    Place {
        segment,
        step,
        ..*place
    }
}

/// The time of the shortest request alone, of the mean lengths of any model's, if there are several
/// models: what a segment should not be longer than.
fn longest(models: &[ModelSpec], arrivals: &[Past]) -> Option<Nanos> {
    let alone = |m: usize| {
        let own = || arrivals.iter().filter(move |p| p.model.index() == m);
        let num = own().count() as u64;
        let mean = |of: fn(&Past) -> u32| own().map(|p| u64::from(of(p))).sum::<u64>() / num.max(1);
        let (input_len, output_len) = (mean(|p| p.input_len), mean(|p| p.output_len));
        let whole = Progress {
            block: 0,
            segment: 0,
            step: 0,
            input_len: input_len as u32,
            output_len: OutputLen::known(output_len as u32).predict(),
        };
        (num > 0).then(|| models[m].table.remaining(&whole, 1, input_len))
    };
    let all: Vec<Nanos> = (0..models.len()).filter_map(alone).collect();
    (all.len() > 1).then(|| all.into_iter().min()).flatten()
}

/// Groups of segments that are one in plans, by block.
fn groups(spec: &ModelSpec, joined: u32, longest: Option<Nanos>) -> SegmentRanges {
    let of = |(b, block): (usize, &BlockSpec)| {
        let num = block.segments.len() as u32;
        let (few, joined) = match block.repeat {
            Repeat::Once => (SEGMENTS.min(num), 1),
            Repeat::PerInputStep { .. } | Repeat::UntilStop { .. } => (1, joined),
        };
        let pass = spec.table.pass(b as u32, 0, 1, 1).0 * u64::from(joined);
        let many = longest.map_or(0, |longest| pass.div_ceil(longest.0.max(1)));
        let most = MOST_SEGMENTS.min(num).max(1);
        cut(num, few.max(many.min(u64::from(most)) as u32))
    };
    spec.blocks.iter().enumerate().map(of).collect()
}

/// So many segments in so many groups of about the same number.
fn cut(num: u32, parts: u32) -> Vec<Range<u32>> {
    (0..parts)
        .map(|i| num * i / parts..num * (i + 1) / parts)
        .collect()
}

/// How many passes of a model's loops are one.
#[derive(Debug, PartialEq)]
struct Stride {
    joined: u32,
    /// By block, how much longer a pass takes then, so that the mean request takes as long.
    longer: Vec<f64>,
}

impl Stride {
    /// By the past, for about so many passes of the mean request.
    fn of<'a>(spec: &ModelSpec, past: impl Iterator<Item = &'a Past> + Clone, most: f64) -> Self {
        let num = past.clone().count().max(1) as f64;
        let mean = |repeat: Repeat, joined: u32| {
            let passes = past.clone().map(|p| f64::from(passes(p, repeat, joined)));
            passes.sum::<f64>() / num
        };
        let loops = spec.blocks.iter().filter(|b| b.repeat.is_loop());
        let means: Vec<f64> = loops.map(|b| mean(b.repeat, 1)).collect();
        let fewest = means.iter().copied().fold(f64::INFINITY, f64::min);
        let joined = (means.iter().sum::<f64>() / most).min(fewest / LEAST_PASSES);
        let loops = spec.blocks.iter().filter(|b| b.repeat.is_loop());
        let passes = loops.flat_map(|b| past.clone().map(|p| passes(p, b.repeat, 1)));
        let longest = passes.max().unwrap_or(0);
        let joined = joined.clamp(1.0, MOST_JOINED) as u32;
        let joined = joined.max(longest.div_ceil(MOST_PASSES));
        let longer = |repeat: Repeat| match mean(repeat, joined) {
            0.0 => 1.0,
            coarse => mean(repeat, 1) / coarse,
        };
        Self {
            joined,
            longer: spec.blocks.iter().map(|b| longer(b.repeat)).collect(),
        }
    }

    fn repeat(&self, repeat: Repeat) -> Repeat {
        match repeat {
            Repeat::Once => Repeat::Once,
            Repeat::PerInputStep { stride } => Repeat::PerInputStep {
                stride: stride.saturating_mul(self.joined),
            },
            Repeat::UntilStop { max } => Repeat::UntilStop {
                max: max.div_ceil(self.joined),
            },
        }
    }
}

/// Passes of a request, `joined` at a time.
fn passes(past: &Past, repeat: Repeat, joined: u32) -> u32 {
    match repeat {
        Repeat::Once => 1,
        Repeat::PerInputStep { stride } => past.input_len.div_ceil(stride.saturating_mul(joined)),
        Repeat::UntilStop { max } => past.output_len.min(max).div_ceil(joined),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use lazybatch_sla::{ClassId, LatencyTable, ModelId, Profile, Progress, RequestId};

    /// An encoder of two blocks over steps, a block that runs once, a decoder.
    fn spec() -> ModelSpec {
        let node = |us: u32| {
            format!(r#"{{"name":"n{us}","by":"members","latency_us":[[1,{us}],[4,{us}]]}}"#)
        };
        let block = |name: &str, repeat: &str, nodes: [u32; 2]| {
            let [a, b] = nodes.map(node);
            format!(r#"{{"name":"{name}","repeat":"{repeat}","nodes":[{a},{b}]}}"#)
        };
        let blocks = [
            block("back", "per_input_step", [1, 2]),
            block("forth", "per_input_step", [3, 4]),
            block("once", "once", [50, 60]),
            block("decode", "until_stop", [5, 6]),
        ];
        let text = format!(
            r#"{{"format":"lazybatch-profile/1","device":"d","copy_gbps":1.0,"dispatch_us":1,
                "models":[{{"name":"m","max_batch":4,"output_len_p90":90,"blocks":[{}]}}]}}"#,
            blocks.join(",")
        );
        let profile = Profile::parse("test", &text).unwrap();
        ModelSpec::from_profile(&profile, &profile.models[0], 1, 100)
    }

    /// Requests of these input and output lengths.
    pub fn past(lengths: &[(u32, u32)]) -> Vec<Past> {
        let one = |&(input_len, output_len): &(u32, u32)| Past {
            id: RequestId(0),
            gap: Nanos::ZERO,
            model: ModelId(0),
            sla: None,
            class: ClassId::default(),
            priority: 0,
            delay_after: None,
            samples: 1,
            input_len,
            output_len,
            max_steps: None,
        };
        lengths.iter().map(one).collect()
    }

    fn sight(corrections: &[Vec<Vec<f64>>], host: Nanos) -> Sight<'_> {
        Sight {
            corrections,
            host,
            passes: PASSES,
        }
    }

    fn plan(past: &mut [Past]) -> ModelSpec {
        plan_of(past, PASSES)
    }

    fn plan_of(past: &mut [Past], passes: f64) -> ModelSpec {
        let corrections = [[1.0, 1.0, 1.0, 2.0].map(|f| vec![f]).to_vec()];
        let corrected = Sight {
            passes,
            ..sight(&corrections, Nanos::ZERO)
        };
        let config = config(&[spec()], &[Class::default()], corrected, past, &mut []);
        config.models.into_iter().next().unwrap()
    }

    #[test]
    fn short_loops_keep_their_passes() {
        let mut past = past(&[(20, 10), (20, 30)]);
        let model = plan(&mut past);
        assert_eq!([past[0].output_len, past[1].output_len], [10, 30]);
        assert_eq!(model.output_len_p90, 90);
        let fine = spec();
        for (coarse, fine) in model.blocks.iter().zip(&fine.blocks) {
            assert_eq!(coarse.repeat, fine.repeat);
        }
        let us = |us: u64| Nanos(us * 1000);
        assert_eq!(model.table.segment(0, 0, 1, 1), us(3 + 2));
        assert_eq!(model.table.num_segments(2), 2);
        assert_eq!(
            model.table.segment(3, 0, 1, 1),
            us(2 * (11 + 2)),
            "corrected"
        );
    }

    #[test]
    fn where_another_model_is_short_passes_have_several_segments() {
        let other = {
            let profile = r#"{"format":"lazybatch-profile/1","device":"d","dispatch_us":0,
                "models":[{"name":"short","max_batch":4,"blocks":[{"name":"a","repeat":"once",
                "nodes":[{"name":"n","by":"members","latency_us":[[1,5],[4,5]]}]}]}]}"#;
            let profile = Profile::parse("test", profile).unwrap();
            ModelSpec::from_profile(&profile, &profile.models[0], 1, 1)
        };
        let mut past = past(&[(20, 10), (20, 10), (1, 1)]);
        past[2].model = ModelId(1);
        // It has run ten passes of the last loop and stands before the second node of one more; that it
        // is guessed to have no more passes than that must leave it one.
        let open = past[0];
        let place = Place {
            sub_batch: 0,
            block: 3,
            segment: 1,
            step: 10,
        };
        let mut open = [Open {
            past: open,
            since: Nanos::ZERO,
            place: Some(place),
        }];
        let corrections = [vec![vec![1.0]; 4], vec![vec![1.0]]];
        let config = config(
            &[spec(), other],
            &[Class::default()],
            sight(&corrections, Nanos::ZERO),
            &mut past,
            &mut open,
        );
        // Of 3, 7, 110 and 11 us (and 1 us a launch), where the other takes 5.
        let segments = config.models[0].blocks.iter().map(|b| b.segments.len());
        assert_eq!(segments.collect::<Vec<_>>(), [1, 2, 2, 2]);
        let place = open[0].place.unwrap();
        assert_eq!((place.segment, place.step), (1, 9));
    }

    #[test]
    fn launches_take_the_host_as_often_as_there_are() {
        let tables = [Nanos::ZERO, Nanos(700)].map(|host| {
            let corrections = [[1.0, 1.0, 1.0, 2.0].map(|f| vec![f]).to_vec()];
            let mut past = past(&[(401, 70), (97, 99), (200, 3)]);
            let corrected = sight(&corrections, host);
            let config = config(
                &[spec()],
                &[Class::default()],
                corrected,
                &mut past,
                &mut [],
            );
            (config.models[0].table.clone(), past)
        });
        let [(without, past), (with, _)] = tables;
        let all = |table: &LatencyTable| -> f64 {
            let one = |p: &Past| {
                let whole = Progress {
                    block: 0,
                    segment: 0,
                    step: 0,
                    input_len: p.input_len,
                    output_len: p.output_len,
                };
                table.remaining(&whole, 1, 1).0 as f64
            };
            past.iter().map(one).sum()
        };
        // Blocks of two segments: two loops over the input, one that runs once, one over the output.
        let launches = 2 * (2 * (401 + 97 + 200) + 3 + 70 + 99 + 3);
        let ratio = (all(&with) - all(&without)) / (700.0 * f64::from(launches));
        assert!((ratio - 1.0).abs() < 0.001, "{ratio}");
    }

    #[test]
    fn long_loops_have_fewer_passes_and_last_as_long() {
        for passes in [PASSES, FEW_PASSES] {
            have_fewer_passes_and_last_as_long(passes);
        }
    }

    fn have_fewer_passes_and_last_as_long(passes: f64) {
        let lengths = [(401, 70), (97, 99), (200, 3)];
        let mut past = past(&lengths);
        let model = plan_of(&mut past, passes);
        let mean = |of: fn(&(u32, u32)) -> u32| lengths.iter().map(of).sum::<u32>() as f64 / 3.0;
        let joined = (2.0 * mean(|l| l.0) + mean(|l| l.1)) / passes;
        let joined = joined.min(mean(|l| l.1) / LEAST_PASSES) as u32;
        assert!(joined > 1);
        for (p, l) in past.iter().zip(lengths) {
            assert_eq!(p.output_len, l.1.div_ceil(joined));
        }
        assert_eq!(model.output_len_p90, 90_u32.div_ceil(joined));
        let place = Place {
            sub_batch: 5,
            block: 3,
            segment: 1,
            step: 34,
        };
        let mut open = [Open {
            past: self::past(&[(50, 35)])[0],
            since: Nanos::ZERO,
            place: Some(place),
        }];
        let mut again = self::past(&lengths);
        let corrections = [vec![vec![1.0]; 4]];
        config(
            &[spec()],
            &[Class::default()],
            Sight {
                passes,
                ..sight(&corrections, Nanos::ZERO)
            },
            &mut again,
            &mut open,
        );
        assert_eq!(open[0].past.output_len, 35_u32.div_ceil(joined));
        let (segment, step) = (0, 35_u32.div_ceil(joined) - 1);
        let last = Place {
            segment,
            step,
            ..place
        };
        assert_eq!(open[0].place, Some(last), "one pass is left");
        // All requests together, one at a time.
        let total = |model: &ModelSpec, lengths: &[(u32, u32)]| -> f64 {
            let alone = |l: &(u32, u32)| {
                let progress = Progress {
                    block: 0,
                    segment: 0,
                    step: 0,
                    input_len: l.0,
                    output_len: l.1,
                };
                model.table.remaining(&progress, 1, 1).0 as f64
            };
            lengths.iter().map(alone).sum()
        };
        let mut fine = spec();
        fine.table = Arc::new(fine.table.scaled(&[1.0, 1.0, 1.0, 2.0].map(|f| vec![f])));
        let coarse: Vec<(u32, u32)> = past.iter().map(|p| (p.input_len, p.output_len)).collect();
        let ratio = total(&model, &coarse) / total(&fine, &lengths);
        assert!((ratio - 1.0).abs() < 0.001, "{ratio}");
    }

    #[test]
    fn places_are_the_nearest_of_joined_passes_and_segments() {
        let near = |repeat, num_segments: u32, segment, step| {
            let groups = match repeat {
                Repeat::Once => cut(num_segments, SEGMENTS.min(num_segments)),
                _ => cut(num_segments, 1),
            };
            let place = Place {
                sub_batch: 5,
                block: 1,
                segment,
                step,
            };
            let near = coarse_place((repeat, &groups), &past(&[(40, 40)])[0], &place, 8);
            assert_eq!((near.sub_batch, near.block), (5, 1));
            (near.segment, near.step)
        };
        // 40 passes are five; 20 segments are eight groups, the sixth from the twelfth on.
        for repeat in [
            Repeat::PerInputStep { stride: 1 },
            Repeat::UntilStop { max: 100 },
        ] {
            let steps = [0, 3, 4, 20, 35, 39].map(|step| near(repeat, 3, 2, step));
            assert_eq!(steps, [0, 0, 1, 3, 4, 4].map(|step| (0, step)));
        }
        let halved = Repeat::PerInputStep { stride: 2 };
        assert_eq!(near(halved, 3, 0, 19), (0, 2), "20 passes are three");
        let groups = [0, 1, 2, 11, 12, 19].map(|s| near(Repeat::Once, 20, s, 0));
        assert_eq!(groups, [0, 0, 1, 4, 5, 7].map(|group| (group, 0)));
    }

    #[test]
    fn however_long_a_request_is_it_has_no_more_passes_than_a_plan_can_run() {
        for output_len in [u32::MAX, 65 * MOST_PASSES, 64 * MOST_PASSES] {
            let mut past = past(&[(20, output_len), (20, 2)]);
            let model = plan(&mut past);
            let passes = past[0].output_len;
            assert!(
                (MOST_PASSES - 1..=MOST_PASSES).contains(&passes),
                "{passes}"
            );
            let whole = 13.0 * 2.0 * f64::from(output_len) * 1e3;
            let last = model.table.segment(3, 0, 1, 1).0 as f64 * f64::from(passes);
            assert!((last / whole - 1.0).abs() < 0.001, "{}", last / whole);
        }
    }

    #[test]
    fn nothing_is_joined_where_nothing_was_seen() {
        let model = plan(&mut []);
        assert_eq!(model.table.segment(1, 0, 1, 1), Nanos(9000));
        assert_eq!(model.output_len_p90, 90);
    }
}
