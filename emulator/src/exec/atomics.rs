//! Atomic operations.

use super::access::{Place, lane_address};
use super::block::World;
use super::warp::{Warp, lanes};
use crate::num::{self, Round};
use crate::ptx::program::{Access, AtomicOp, Dest, Reg};
use crate::ptx::types::Type;
use crate::report::Fault;

impl World<'_> {
    /// Lanes one after another: the old value into `dest`, the new one into memory.
    pub(super) fn atomic(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        (ty, op): (Type, AtomicOp),
        dest: Option<Dest>,
        (value, other): (Reg, Reg),
        active: u32,
    ) -> Result<(), Box<Fault>> {
        let len = access.unit;
        for lane in lanes(active) {
            let address = lane_address(warp, access.address, lane);
            let place = self.place(access.space, address, len, warp, lane)?;
            self.reads(place, len, warp, lane, true)?;
            let old = self.word(place, len);
            let new = apply(op, ty, old, warp.row(value)[lane], warp.row(other)[lane]);
            let bytes = new.to_le_bytes();
            self.writes(place, &bytes[..len], warp, lane, true)?;
            self.put(place, &bytes[..len]);
            if let Place::Device(..) = place {
                self.hand_over(address, true);
            }
            if let Some(dest) = dest {
                warp.set_lane(dest, lane, old);
            }
        }
        Ok(())
    }
}

/// The new value of an atomic; for `cas`, `value` is compared and `other` is put.
fn apply(op: AtomicOp, ty: Type, old: u64, value: u64, other: u64) -> u64 {
    let mask = u64::MAX >> (64 - 8 * ty.bytes());
    let signed = |v: u64| match ty.bytes() {
        4 => i64::from(v as i32),
        _ => v as i64,
    };
    let picks_old = |is_min: bool| {
        let less = if ty.is_signed() {
            signed(old) <= signed(value)
        } else {
            old <= value
        };
        less == is_min
    };
    let new = match op {
        AtomicOp::Add => return add(ty, old, value),
        AtomicOp::Min => {
            if picks_old(true) {
                old
            } else {
                value
            }
        }
        AtomicOp::Max => {
            if picks_old(false) {
                old
            } else {
                value
            }
        }
        AtomicOp::Inc => {
            if old >= value {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Dec => {
            if old == 0 || old > value {
                value
            } else {
                old - 1
            }
        }
        AtomicOp::And => old & value,
        AtomicOp::Or => old | value,
        AtomicOp::Xor => old ^ value,
        AtomicOp::Exch => value,
        AtomicOp::Cas => {
            if old == value & mask {
                other
            } else {
                old
            }
        }
    };
    new & mask
}

fn add(ty: Type, old: u64, value: u64) -> u64 {
    let f16 = |bits: u64| half::f16::from_bits(bits as u16).to_f64();
    let bf16 = |bits: u64| half::bf16::from_bits(bits as u16).to_f64();
    let sum16 = |shift: u32| {
        num::add(
            num::F16,
            f16(old >> shift),
            f16(value >> shift),
            Round::Nearest,
        )
    };
    let sum_brain = |shift: u32| {
        num::add(
            num::BF16,
            bf16(old >> shift),
            bf16(value >> shift),
            Round::Nearest,
        )
    };
    match ty {
        Type::F16 => sum16(0),
        Type::F16x2 => sum16(0) | sum16(16) << 16,
        Type::Bf16 => sum_brain(0),
        Type::Bf16x2 => sum_brain(0) | sum_brain(16) << 16,
        Type::F32 => {
            let of = |bits: u64| f64::from(f32::from_bits(bits as u32));
            num::add(num::F32, of(old), of(value), Round::Nearest)
        }
        Type::F64 => (f64::from_bits(old) + f64::from_bits(value)).to_bits(),
        Type::U64 => old.wrapping_add(value),
        _ => old.wrapping_add(value) & 0xffff_ffff,
    }
}
