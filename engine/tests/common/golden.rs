//! Timelines worked out by hand: the arithmetic stands beside the lines, times are microseconds.
//!
//! A profile is blocks of `name repeat nodes`, separated by `;`; that of a second model stands behind `|`.
//! A node `10+2` takes 10 at batch 1
//! and 2 more per further member. `max_batch N` and `p90 N` may stand among the blocks. An arrival
//! is a line `at 12 model 1 in 3 out 2 sla 100 priority 1 samples 2`, in any order and without what is zero
//! (`sla`: none). The expected timeline may be indented, and what stands behind `//` is a comment.

#![allow(
    clippy::unwrap_used,
    reason = "fixtures are literals of the test files"
)]

use lazybatch_engine::driver::Observer;
use lazybatch_engine::timeline::Timeline;

use super::*;

/// A profile and the names of its models' blocks.
fn parse_profile(text: &str) -> (World, Vec<Vec<String>>) {
    let (models, names) = text.split('|').map(parse_model).unzip();
    let dispatch = 0;
    (World { models, dispatch }, names)
}

fn parse_model(text: &str) -> (Model, Vec<String>) {
    let mut model = Model {
        max_batch: 4,
        p90: 1,
        blocks: Vec::new(),
    };
    let mut names = Vec::new();
    for part in text.split(';') {
        let words: Vec<&str> = part.split_whitespace().collect();
        match words[..] {
            ["max_batch", n] => model.max_batch = n.parse().unwrap(),
            ["p90", n] => model.p90 = n.parse().unwrap(),
            [name, repeat, ref nodes @ ..] => {
                names.push(name.to_string());
                let rep = match repeat {
                    "once" => Rep::Once,
                    "per_input_step" => Rep::PerStep(1),
                    "until_stop" => Rep::Until(None),
                    other => panic!("no repeat rule: {other}"),
                };
                let nodes = nodes.iter().map(|n| parse_node(n)).collect();
                model.blocks.push(Block { rep, nodes });
            }
            _ => panic!("no block: {part}"),
        }
    }
    (model, names)
}

fn parse_node(text: &str) -> Node {
    let us = |t: &str| 1000 * t.parse::<u64>().unwrap();
    match text.split_once('+') {
        None => Node::constant(us(text)),
        Some((first, further)) => Node {
            by_rows: false,
            points: vec![(1, us(first)), (2, us(first) + us(further))],
        },
    }
}

fn parse_arrival(line: &str) -> Arrival {
    let mut arrival = Arrival::new(0, 0, 0, 0, None);
    let words: Vec<&str> = line.split_whitespace().collect();
    for pair in words.chunks(2) {
        let value: u64 = pair[1].parse().unwrap();
        match pair[0] {
            "at" => arrival.at = 1000 * value,
            "model" => arrival.model = value as usize,
            "in" => arrival.input_len = value as u32,
            "out" => arrival.output_len = value as u32,
            "sla" => arrival.sla = Some(1000 * value),
            "priority" => arrival.priority = value as u8,
            "delay" => arrival.delay = Some(1000 * value),
            "samples" => arrival.samples = value as u32,
            other => panic!("no key of an arrival: {other}"),
        }
    }
    arrival
}

/// Lines without indentation and comments.
pub fn plain(text: &str) -> String {
    let lines = text.lines().map(|l| l.split("//").next().unwrap().trim());
    lines
        .filter(|l| !l.is_empty())
        .map(|l| format!("{l}\n"))
        .collect()
}

/// The timeline of a checked run; `stack` turns on the checker's rule for stack policies.
pub fn timeline(policy: &str, profile: &str, arrivals: &str, stack: bool) -> String {
    let (world, names) = parse_profile(profile);
    let arrivals: Vec<Arrival> = plain(arrivals).lines().map(parse_arrival).collect();
    let options = Options {
        notes: true,
        stack,
        record: true,
        ..Options::default()
    };
    let run = simulate(&world, policy, &arrivals, &options);
    let mut config = run.config;
    for ((model, name), blocks) in config.models.iter_mut().zip(["m", "n"]).zip(names) {
        model.name = name.into();
        for (block, name) in model.blocks.iter_mut().zip(blocks) {
            block.name = name;
        }
    }
    let mut timeline = Timeline::new(&config);
    for (now, item) in &run.transcript {
        match item {
            Item::Event(event) => timeline.on_event(*now, event),
            Item::Launch(launch) => timeline.on_launch(*now, launch),
            Item::Action(action) => timeline.on_action(*now, action),
        }
    }
    plain(&timeline.into_text())
}
