//! What lanes of a warp do together: shuffles, votes, matches, reductions.

use super::block::World;
use super::warp::{Wait, Warp, lanes};
use crate::ptx::forms::{LANES, Row};
use crate::ptx::program::{Collective, Op, ReduceOp, Reg, ShuffleMode, VoteMode};
use crate::report::{Fault, Kind};

/// Runs a collective for the lanes of a group that are all there; the others wait.
pub(super) fn run(
    warp: &mut Warp,
    picked: usize,
    members: Reg,
    collective: &Collective,
    world: &mut World<'_>,
) -> Result<(), Box<Fault>> {
    let masks = *warp.row(members);
    let group = warp.groups[picked];
    let mut left = group.mask;
    let mut done = 0;
    while left != 0 {
        let lane = left.trailing_zeros() as usize;
        let named = masks[lane] as u32;
        let same = lanes(left)
            .filter(|l| masks[*l] as u32 == named)
            .fold(0u32, |m, l| m | 1 << l);
        left &= !same;
        if let Some(lane) = lanes(same & !named).next() {
            let what = format!(
                "lane {lane} runs this with the member mask {named:#010x}, which does not name it"
            );
            return Err(Fault::new(Kind::BadMask, lane, what));
        }
        if named & warp.live & !same == 0 {
            apply(warp, same, collective, world)?;
            done |= same;
        }
    }
    let rest = group.mask & !done;
    if rest == 0 {
        warp.groups[picked].pc += 1;
    } else {
        warp.groups[picked].mask = rest;
        warp.groups[picked].wait = Wait::Lanes;
        if done != 0 {
            warp.groups.push(super::warp::Group {
                pc: group.pc + 1,
                mask: done,
                wait: Wait::No,
            });
        }
    }
    Ok(())
}

/// Lets lanes go that wait for each other at different `bar.warp.sync`; `false` when there are none.
pub(super) fn meet(warp: &mut Warp, world: &mut World<'_>) -> bool {
    let mut waiting = Vec::new();
    for (i, group) in warp.groups.iter().enumerate() {
        if let Op::Collective {
            mask,
            collective: Collective::Sync,
        } = &world.program.code[group.pc].op
            && group.wait == Wait::Lanes
        {
            let lane = group.mask.trailing_zeros() as usize;
            waiting.push((i, group.mask, warp.row(*mask)[lane] as u32));
        }
    }
    for (_, _, named) in &waiting {
        let same: Vec<_> = waiting.iter().filter(|(_, _, n)| n == named).collect();
        let there = same.iter().fold(0, |m, (_, mask, _)| m | mask);
        if named & warp.live & !there == 0 {
            world.warp_synced(warp.index, there);
            for (i, _, _) in same {
                warp.groups[*i].pc += 1;
                warp.groups[*i].wait = Wait::No;
            }
            return true;
        }
    }
    false
}

fn apply(
    warp: &mut Warp,
    mask: u32,
    collective: &Collective,
    world: &mut World<'_>,
) -> Result<(), Box<Fault>> {
    match collective {
        Collective::Sync => world.warp_synced(warp.index, mask),
        Collective::Shuffle {
            mode,
            dest,
            found,
            value,
            by,
            clamp,
        } => {
            let (values, bys, clamps) = (*warp.row(*value), *warp.row(*by), *warp.row(*clamp));
            let (mut results, mut hits) = ([0; LANES], [0; LANES]);
            for lane in lanes(mask) {
                let (from, hit) =
                    shuffle_source(*mode, lane, bys[lane] as u32, clamps[lane] as u32);
                if mask >> from & 1 == 0 && dest.is_some() {
                    let what = format!("lane {lane} reads lane {from}, which does not take part");
                    return Err(Fault::new(Kind::BadMask, lane, what));
                }
                results[lane] = values[from];
                hits[lane] = u64::from(hit);
            }
            if let Some(dest) = dest {
                warp.set(*dest, mask, &results);
            }
            if let Some(found) = found {
                warp.set(*found, mask, &hits);
            }
        }
        Collective::Vote {
            mode,
            dest,
            value,
            is_negated,
        } => {
            let ayes = warp.holds(*value, *is_negated, mask);
            let answer = match mode {
                VoteMode::All => u64::from(ayes == mask),
                VoteMode::Any => u64::from(ayes != 0),
                VoteMode::Uni => u64::from(ayes == mask || ayes == 0),
                VoteMode::Ballot => ayes.into(),
            };
            warp.set(*dest, mask, &[answer; LANES]);
        }
        Collective::Match {
            is_all,
            dest,
            all,
            value,
        } => {
            let values = *warp.row(*value);
            let mut results: Row = [0; LANES];
            for lane in lanes(mask) {
                let same = lanes(mask).filter(|l| values[*l] == values[lane]);
                results[lane] = same.fold(0, |m, l| m | 1 << l);
            }
            let agree = lanes(mask).all(|lane| results[lane] == u64::from(mask));
            if *is_all && !agree {
                results = [0; LANES];
            }
            warp.set(*dest, mask, &results);
            if let Some(all) = all {
                warp.set(*all, mask, &[u64::from(agree); LANES]);
            }
        }
        Collective::Reduce { op, dest, value } => {
            let values = *warp.row(*value);
            let result = reduce(*op, lanes(mask).map(|lane| values[lane] as u32));
            warp.set(*dest, mask, &[result.into(); LANES]);
        }
    }
    Ok(())
}

/// The lane that a lane reads, and whether it lies in its segment (else it reads itself).
fn shuffle_source(mode: ShuffleMode, lane: usize, by: u32, clamp: u32) -> (usize, bool) {
    let (lane, by) = (lane as i64, i64::from(by & 0x1f));
    let segment = i64::from(clamp >> 8 & 0x1f);
    let clamp = i64::from(clamp & 0x1f);
    let max = (lane & segment) | (clamp & !segment);
    let (from, hit) = match mode {
        ShuffleMode::Up => (lane - by, lane - by >= max),
        ShuffleMode::Down => (lane + by, lane + by <= max),
        ShuffleMode::Bfly => (lane ^ by, lane ^ by <= max),
        ShuffleMode::Idx => {
            let from = (lane & segment) | (by & !segment);
            (from, from <= max)
        }
    };
    (if hit { from as usize } else { lane as usize }, hit)
}

/// Joins values.
pub(super) fn reduce(op: ReduceOp, values: impl Iterator<Item = u32>) -> u32 {
    let signed = |v: u32| v as i32;
    let joined = match op {
        ReduceOp::Add => values.reduce(u32::wrapping_add),
        ReduceOp::MinU => values.reduce(u32::min),
        ReduceOp::MaxU => values.reduce(u32::max),
        ReduceOp::MinS => values.reduce(|a, b| signed(a).min(signed(b)) as u32),
        ReduceOp::MaxS => values.reduce(|a, b| signed(a).max(signed(b)) as u32),
        ReduceOp::And => values.reduce(|a, b| a & b),
        ReduceOp::Or => values.reduce(|a, b| a | b),
        ReduceOp::Xor => values.reduce(|a, b| a ^ b),
        ReduceOp::Popc => Some(values.filter(|v| *v & 1 == 1).count() as u32),
    };
    joined.unwrap_or(0)
}
