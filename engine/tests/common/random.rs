//! Random worlds and arrivals from a seed.

use super::*;

/// Ranges that a random world is drawn from.
#[derive(Clone, Copy)]
pub struct Shape {
    pub max_models: usize,
    /// Caps on passes of loops that run until a stop, in any block (else in last blocks only).
    pub caps_anywhere: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            max_models: 3,
            caps_anywhere: true,
        }
    }
}

fn points(rng: &mut ChaCha8Rng, rows: bool) -> Vec<(u64, u64)> {
    let num = rng.random_range(1..=4);
    let mut x = rng.random_range(1..=3);
    let mut y: i64 = rng.random_range(200..5_000);
    let mut points = Vec::new();
    for _ in 0..num {
        points.push((x, y as u64));
        x += rng.random_range(1..=if rows { 20 } else { 6 });
        // One piece in five falls; the last one may, so that far extrapolation reaches zero.
        y = if rng.random_bool(0.2) {
            (y - rng.random_range(0..1_000)).max(0)
        } else {
            y + rng.random_range(0..2_000)
        };
    }
    points
}

fn block(rng: &mut ChaCha8Rng, may_cap: bool) -> Block {
    let rep = match rng.random_range(0..10) {
        0..=4 => Rep::Once,
        5..=6 => Rep::PerStep(rng.random_range(1..=3)),
        _ if may_cap && rng.random_bool(0.2) => Rep::Until(Some(rng.random_range(1..=4))),
        _ => Rep::Until(None),
    };
    let num_nodes = if rep == Rep::Once {
        rng.random_range(1..=8)
    } else {
        rng.random_range(1..=4)
    };
    let nodes = (0..num_nodes)
        .map(|_| {
            let by_rows = rep == Rep::Once && rng.random_bool(0.3);
            Node {
                by_rows,
                points: points(rng, by_rows),
            }
        })
        .collect();
    Block { rep, nodes }
}

/// A random world.
pub fn random_world(rng: &mut ChaCha8Rng, shape: Shape) -> World {
    let num_models = if rng.random_bool(0.5) {
        1
    } else {
        rng.random_range(1..=shape.max_models)
    };
    let model = |rng: &mut ChaCha8Rng| {
        let num = rng.random_range(1..=5);
        Model {
            max_batch: *[1, 2, 3, 4, 8, 64]
                .get(rng.random_range(0..6))
                .expect("six"),
            p90: rng.random_range(1..=6),
            blocks: (0..num)
                .map(|i| block(rng, shape.caps_anywhere || i + 1 == num))
                .collect(),
        }
    };
    World {
        models: (0..num_models).map(|_| model(rng)).collect(),
        dispatch: if rng.random_bool(0.3) {
            rng.random_range(1..300)
        } else {
            0
        },
    }
}

/// Mean time of a request alone.
pub fn mean_alone(world: &World) -> u64 {
    let sum: u64 = world
        .models
        .iter()
        .map(|m| m.alone(world.dispatch, 3, 3))
        .sum();
    (sum / world.models.len() as u64).max(1)
}

/// Random arrivals: ties, bursts, pauses, zero lengths, all models, and SLA targets from hopeless
/// to generous.
pub fn random_arrivals(rng: &mut ChaCha8Rng, world: &World, num: usize) -> Vec<Arrival> {
    let alone = mean_alone(world);
    // Offered load between a fifth of and four times what one request after another would give.
    let gap = (alone as f64 / rng.random_range(0.2..4.0)) as u64 + 1;
    let sla_scale: Option<f64> = match rng.random_range(0..8) {
        0 => None,
        1 => Some(0.3),
        2 => Some(50.0),
        _ => Some(rng.random_range(1.0..15.0)),
    };
    let zeros = rng.random_bool(0.4);
    let mut at = 0;
    (0..num)
        .map(|_| {
            at += match rng.random_range(0..10) {
                0..=2 => 0,
                3 => 3 * gap,
                _ => rng.random_range(0..=2 * gap),
            };
            let length = |rng: &mut ChaCha8Rng| {
                if zeros && rng.random_bool(0.3) {
                    0
                } else {
                    rng.random_range(1..=7)
                }
            };
            let sla = sla_scale.map(|s| (alone as f64 * s * rng.random_range(0.5..2.0)) as u64 + 1);
            Arrival::new(
                at,
                rng.random_range(0..world.models.len()),
                length(rng),
                length(rng),
                sla,
            )
        })
        .collect()
}
