//! Matrix products and matrix loads of a whole warp.
//!
//! Products are summed in double precision and rounded once, which no tensor core does: results
//! agree with a GPU's within its rounding, not in every bit.

use half::{bf16, f16};

use super::access::lane_address;
use super::block::World;
use super::warp::Warp;
use crate::num::{self, Round};
use crate::ptx::forms::LANES;
use crate::ptx::program::{MmaType, Op, Reg};
use crate::report::Fault;

pub(super) fn run(warp: &mut Warp, op: &Op, world: &mut World<'_>) -> Result<(), Box<Fault>> {
    match op {
        Op::LoadMatrix { .. } => load(warp, op, world),
        _ => {
            multiply(warp, op);
            Ok(())
        }
    }
}

/// Rows of 8 values of 16 bits at the addresses of 8 lanes for each matrix; each lane gets two
/// neighbours of a row, or of a column.
fn load(warp: &mut Warp, op: &Op, world: &mut World<'_>) -> Result<(), Box<Fault>> {
    let Op::LoadMatrix {
        address,
        space,
        dests,
        is_transposed,
    } = op
    else {
        return Ok(());
    };
    for (n, dest) in dests.iter().enumerate() {
        let mut rows = [[0u64; 8]; 8];
        for (i, row) in rows.iter_mut().enumerate() {
            let lane = 8 * n + i;
            let at = lane_address(warp, *address, lane);
            let place = world.place(*space, at, 16, warp, lane)?;
            world.reads(place, 16, warp, lane, false)?;
            for (value, bytes) in row.iter_mut().zip(world.bytes(place, 16).chunks(2)) {
                *value = u64::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            }
        }
        for lane in 0..LANES {
            let (row, col) = (lane / 4, 2 * (lane % 4));
            let pick = |col: usize| {
                if *is_transposed {
                    rows[col][row]
                } else {
                    rows[row][col]
                }
            };
            warp.set_lane(*dest, lane, pick(col) | pick(col + 1) << 16);
        }
    }
    Ok(())
}

/// Value `i` of a lane's words.
fn value(warp: &Warp, words: &[Reg], lane: usize, i: usize, ty: MmaType) -> f64 {
    let word = |reg: Reg| warp.row(reg)[lane];
    match ty {
        // The low 13 bits are not looked at.
        MmaType::Tf32 => f32::from_bits(word(words[i]) as u32 & !0x1fff).into(),
        MmaType::F16 => f16::from_bits((word(words[i / 2]) >> (16 * (i % 2))) as u16).into(),
        MmaType::Bf16 => bf16::from_bits((word(words[i / 2]) >> (16 * (i % 2))) as u16).into(),
    }
}

/// `d[16][8] = a[16][k] * b[k][8] + c[16][8]`, spread over the lanes as PTX says.
fn multiply(warp: &mut Warp, op: &Op) {
    let Op::Mma {
        k,
        ty,
        is_f16_sum,
        dests,
        a,
        b,
        c,
    } = op
    else {
        return;
    };
    // Neighbours along k that a lane holds together.
    let run = if *ty == MmaType::Tf32 { 1 } else { 2 };
    let (mut left, mut right) = ([[0.0; 16]; 16], [[0.0; 8]; 16]);
    let (mut sums, mut out) = ([[0.0; 8]; 16], [[0u64; 8]; 16]);
    for lane in 0..LANES {
        let (group, within) = (lane / 4, lane % 4);
        for i in 0..16 * k / LANES {
            let (chunk, part) = (i / run, i % run);
            let row = group + 8 * (chunk % 2);
            let col = within * run + part + 4 * run * (chunk / 2);
            left[row][col] = value(warp, a, lane, i, *ty);
        }
        for i in 0..8 * k / LANES {
            let row = within * run + i % run + 4 * run * (i / run);
            right[row][group] = value(warp, b, lane, i, *ty);
        }
        for i in 0..4 {
            let of = if *is_f16_sum {
                value(warp, c, lane, i, MmaType::F16)
            } else {
                f32::from_bits(warp.row(c[i])[lane] as u32).into()
            };
            sums[group + 8 * (i / 2)][2 * within + i % 2] = of;
        }
    }
    let format = if *is_f16_sum { num::F16 } else { num::F32 };
    for row in 0..16 {
        for col in 0..8 {
            let products = (0..*k).map(|i| left[row][i] * right[i][col]);
            let sum = products.sum::<f64>() + sums[row][col];
            out[row][col] = format.round(sum, 0.0, Round::Nearest);
        }
    }
    for lane in 0..LANES {
        let (group, within) = (lane / 4, lane % 4);
        let at = |i: usize| out[group + 8 * (i / 2)][2 * within + i % 2];
        for (n, dest) in dests.iter().enumerate() {
            let bits = if *is_f16_sum {
                at(2 * n) | at(2 * n + 1) << 16
            } else {
                at(n)
            };
            warp.set_lane(*dest, lane, bits);
        }
    }
}
