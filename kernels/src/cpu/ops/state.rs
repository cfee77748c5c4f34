//! Kernels with effects: states, outputs, stop flags. Idle members and padding leave none.

use lazybatch_graph::{At, OutputId, StateId};

use crate::cpu::buffers::Buf;
use crate::cpu::exec::{Env, NodeView, Outs};
use crate::cpu::open::Emitted;
use crate::validate::touched;

/// Content of a vector state.
pub fn vec_read(env: &mut Env<'_>, v: NodeView<'_>, state: StateId) -> Buf {
    let mut out = v.alloc(env, 0);
    let d = v.out_ty(0).row_elems();
    for (mem, start, num) in v.spans(None) {
        let vector = &env.slots.open(mem.slot).vectors[state.index()];
        out[start * d..(start + num) * d].copy_from_slice(vector);
    }
    out
}

/// Overwrites a vector state.
pub fn vec_write(env: &mut Env<'_>, v: NodeView<'_>, state: StateId) -> Outs {
    let (x, d) = (v.arg(0), v.ty(0).row_elems());
    for (mem, start, num) in v.spans(None).filter(|(m, ..)| !m.idle) {
        let vector = &mut env.slots.open_mut(mem.slot).vectors[state.index()];
        vector.copy_from_slice(&x[start * d..(start + num) * d]);
    }
    Outs::new()
}

/// Rows of a sequence state. A member that has too few fails.
pub fn seq_read(env: &mut Env<'_>, v: NodeView<'_>, state: StateId, at: At) -> Buf {
    let mut out = v.alloc(env, 0);
    let d = v.out_ty(0).row_elems();
    let lead = v.out_ty(0).lead();
    for (mem, start, num) in v.spans(lead) {
        let (pool, open) = (&env.states.pools[state.index()], env.slots.open(mem.slot));
        let seq = &open.sequences[state.index()];
        let to = &mut out[start * d..(start + num) * d];
        if at == At::All {
            let (own, has) = (mem.own(lead), seq.len);
            for (r, to) in to.chunks_exact_mut(d).enumerate() {
                if r < own.min(has) {
                    to.copy_from_slice(pool.row(seq, r));
                } else {
                    to.fill(0.0);
                }
            }
            if has < own {
                let name = &v.model.program.state(state).name;
                env.fault(mem, || {
                    format!("state {name} holds {has} of {own} rows").into()
                });
            }
        } else {
            let pos = match at {
                At::End => seq.len.checked_sub(1),
                _ => touched(v.repeat, at, mem.step, mem.len),
            };
            match pos.filter(|&p| p < seq.len) {
                Some(p) => to.copy_from_slice(pool.row(seq, p)),
                None => to.fill(0.0),
            }
        }
    }
    out
}

/// Writes a sequence state. A member that has no room fails.
pub fn seq_write(env: &mut Env<'_>, v: NodeView<'_>, state: StateId, at: At) -> Outs {
    let (x, d) = (v.arg(0), v.ty(0).row_elems());
    let lead = v.ty(0).lead();
    for (mem, start, _) in v.spans(lead).filter(|(m, ..)| !m.idle) {
        let seq = &mut env.slots.open_mut(mem.slot).sequences[state.index()];
        let pool = &mut env.states.pools[state.index()];
        let rows = if at == At::All { mem.own(lead) } else { 1 };
        let mut written = Ok(());
        for r in 0..rows {
            let pos = match at {
                At::All => Some(r),
                At::End => Some(seq.len),
                _ => touched(v.repeat, at, mem.step, mem.len),
            };
            let Some(pos) = pos else { continue };
            written = written.and_then(|()| pool.write(seq, pos, &x[(start + r) * d..][..d]));
        }
        if let Err(why) = written {
            let name = &v.model.program.state(state).name;
            env.fault(mem, || format!("state {name}: {why}").into());
        }
    }
    Outs::new()
}

/// Appends to or sets an output.
pub fn emit(env: &mut Env<'_>, v: NodeView<'_>, output: OutputId) -> Outs {
    let (x, d) = (v.arg(0), v.ty(0).row_elems());
    let lead = v.ty(0).lead();
    let grows = v
        .model
        .program
        .output(output)
        .ty
        .dims
        .contains(&lazybatch_graph::Dim::Len);
    for (mem, start, _) in v.spans(lead).filter(|(m, ..)| !m.idle) {
        let out = &mut env.slots.open_mut(mem.slot).outputs[output.index()];
        env.emits.push(Emitted {
            slot: mem.slot,
            output,
            before: out.emitted(),
        });
        if !grows {
            out.data.clear();
        }
        out.data
            .extend_from_slice(&x[start * d..(start + mem.own(lead)) * d]);
        out.set = true;
    }
    Outs::new()
}

/// Ends the loop of members that chose the stop token.
pub fn stop(env: &mut Env<'_>, v: NodeView<'_>, token: i32) -> Outs {
    let ids = v.ids(0);
    for (mem, start, _) in v.spans(v.ty(0).lead()).filter(|(m, ..)| !m.idle) {
        if ids[start] == token && !env.stopped.contains(&mem.request) {
            env.stopped.push(mem.request);
        }
    }
    Outs::new()
}
