//! Kernels that move and look up rows.

use lazybatch_graph::{At, InputId, Repeat};

use crate::cpu::buffers::Buf;
use crate::cpu::exec::{Env, NodeView};
use crate::cpu::math;
use crate::error::Fault;
use crate::validate::{is_sequence, touched};

/// The request's input.
pub fn input(env: &mut Env<'_>, v: NodeView<'_>, input: InputId, at: At) -> Buf {
    let mut out = v.alloc(env, 0);
    let decl = v.model.program.input(input);
    let row = decl.ty.row_elems();
    let lead = v.out_ty(0).lead();
    let stride = match v.repeat {
        Repeat::PerInputStep { stride } => stride as usize,
        _ => 1,
    };
    for (mem, start, num) in v.spans(lead) {
        let data = &env.slots.open(mem.slot).inputs[input.index()];
        let to = &mut out[start * row..(start + num) * row];
        if is_sequence(decl) && v.repeat.is_loop() {
            let pos = touched(v.repeat, at, mem.step, mem.len).map(|p| p * stride);
            match pos.filter(|p| (p + 1) * row <= data.len()) {
                Some(p) => to.copy_from_slice(&data[p * row..][..row]),
                None => to.fill(0.0),
            }
        } else {
            let have = data.len().min(to.len());
            to[..have].copy_from_slice(&data[..have]);
            to[have..].fill(0.0);
        }
    }
    out
}

/// Rows of a table by id.
pub fn embedding(env: &mut Env<'_>, v: NodeView<'_>) -> Buf {
    let mut out = v.alloc(env, 0);
    let (ids, table, d) = (v.ids(0), v.arg(1), v.last_dim(1));
    for (r, (&id, to)) in ids.iter().zip(out.chunks_exact_mut(d)).enumerate() {
        match table_row(table, d, id) {
            Some(row) => to.copy_from_slice(row),
            None => {
                to.fill(0.0);
                no_such_row(env, v, r, id);
            }
        }
    }
    out
}

/// Sum of table rows. A member with an id that the table does not have fails.
pub fn embedding_bag(env: &mut Env<'_>, v: NodeView<'_>) -> Buf {
    let mut out = v.alloc(env, 0);
    let (ids, table, d) = (v.ids(0), v.arg(1), v.last_dim(1));
    let each = v.ty(0).row_elems();
    let rows = ids.chunks_exact(each).zip(out.chunks_exact_mut(d));
    for (r, (ids, to)) in rows.enumerate() {
        to.fill(0.0);
        for &id in ids {
            match table_row(table, d, id) {
                Some(row) => to.iter_mut().zip(row).for_each(|(o, t)| *o += t),
                None => no_such_row(env, v, r, id),
            }
        }
    }
    out
}

fn table_row(table: &[f32], d: usize, id: i32) -> Option<&[f32]> {
    let id = usize::try_from(id).ok()?;
    table.chunks_exact(d).nth(id)
}

/// Fails the member whose row `r` of operand 0 has an id that its table does not have. What a graph
/// computes may be anything; inputs were checked before.
fn no_such_row(env: &mut Env<'_>, v: NodeView<'_>, r: usize, id: i32) {
    let (lead, rows) = (v.ty(0).lead(), v.arg(1).len() / v.last_dim(1));
    // Rows behind the members' are nobody's, and a member's padding has no effect.
    let owner = v.spans(lead).find(|(mem, start, _)| {
        let own = *start..*start + mem.own(lead);
        own.contains(&r)
    });
    if let Some((mem, ..)) = owner {
        env.fault(mem, || {
            Fault::of_request(format!("id {id} in a table of {rows} rows"))
        });
    }
}

/// Adds position rows.
pub fn add_position(env: &mut Env<'_>, v: NodeView<'_>) -> Buf {
    let mut out = v.alloc(env, 0);
    let (x, table, d) = (v.arg(0), v.arg(1), v.last_dim(1));
    let last = table.len() / d - 1;
    for (mem, start, num) in v.spans(v.ty(0).lead()) {
        for r in 0..num {
            // Only rows without effect can be behind the table's end; see `CpuDevice::load`.
            let row = &table[v.position(mem, r).min(last) * d..][..d];
            let at = (start + r) * d..(start + r + 1) * d;
            for ((o, x), p) in out[at.clone()].iter_mut().zip(&x[at]).zip(row) {
                *o = x + p;
            }
        }
    }
    out
}

/// The operand under another shape.
pub fn copy(env: &mut Env<'_>, v: NodeView<'_>) -> Buf {
    let mut out = v.alloc(env, 0);
    out.copy_from_slice(v.arg(0));
    out
}

/// Concatenation along the first fixed dimension: of rows, or of the pixels of images that lie
/// channels last.
pub fn concat(env: &mut Env<'_>, v: NodeView<'_>) -> Buf {
    let mut out = v.alloc(env, 0);
    let dims = v.out_ty(0).fixed_dims();
    let is_last = v.model.layouts.is_last(v.node.outputs[0]);
    let parts: usize = if is_last {
        dims[1..].iter().product()
    } else {
        1
    };
    let width = v.out_ty(0).row_elems() / parts;
    let mut at = 0;
    for i in 0..v.node.inputs.len() {
        let w = v.ty(i).row_elems() / parts;
        let x = v.arg(i);
        for (to, from) in out.chunks_exact_mut(width).zip(x.chunks_exact(w)) {
            to[at..at + w].copy_from_slice(from);
        }
        at += w;
    }
    out
}

/// Some features of a row.
pub fn slice(env: &mut Env<'_>, v: NodeView<'_>, start: usize, len: usize) -> Buf {
    let mut out = v.alloc(env, 0);
    let d = v.ty(0).row_elems();
    for (to, from) in out.chunks_exact_mut(len).zip(v.arg(0).chunks_exact(d)) {
        to.copy_from_slice(&from[start..start + len]);
    }
    out
}

/// Mean over each member's own rows, added in order.
pub fn mean_rows(env: &mut Env<'_>, v: NodeView<'_>) -> Buf {
    let mut out = v.alloc(env, 0);
    let (x, d) = (v.arg(0), v.ty(0).row_elems());
    let lead = v.ty(0).lead();
    for (mem, start, _) in v.spans(lead) {
        let to = &mut out[mem.sample_start * d..][..d];
        let own = mem.own(lead);
        to.fill(0.0);
        for r in start..start + own {
            math::axpy(env.level, 1.0, &x[r * d..][..d], to);
        }
        to.iter_mut().for_each(|t| *t /= own as f32);
    }
    out
}

/// The row of each member that `which` picks from the number of its own.
pub fn one_row(env: &mut Env<'_>, v: NodeView<'_>, which: impl Fn(usize) -> usize) -> Buf {
    let mut out = v.alloc(env, 0);
    let (x, d) = (v.arg(0), v.ty(0).row_elems());
    let lead = v.ty(0).lead();
    for (mem, start, _) in v.spans(lead) {
        let row = start + which(mem.own(lead));
        out[mem.sample_start * d..][..d].copy_from_slice(&x[row * d..][..d]);
    }
    out
}
