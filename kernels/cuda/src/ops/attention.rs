//! Attention within members, over sequence states, and additive attention.

use lazybatch_graph::{Heads, Seen, StateId, StateKind};

use crate::context::DevicePtr;
use crate::exec::Walk;
use crate::kernels::attention::{Attention, Bias};
use crate::kernels::attention_matrix::takes_heads;
use crate::kernels::state_attention::{Memory, SPLIT, workspace_bytes};
use crate::memory::ELEM;

/// Attention within each member.
pub fn attention(
    w: &mut Walk<'_>,
    heads: Heads,
    seen: Seen,
    cap: Option<f32>,
    has_bias: bool,
) -> Result<(), String> {
    let lead = w.ty(0).lead();
    let members = w.members(lead)?;
    let rows = w.frame.members.iter().map(|m| m.span(lead).1);
    let call = Attention {
        q: w.arg(0),
        k: w.arg(1),
        v: w.arg(2),
        out: w.out(0),
        members,
        num_members: w.frame.members.len(),
        max_rows: w.bounded(rows.max().unwrap_or(0)),
        heads,
        seen,
        cap,
        bias: has_bias.then(|| Bias {
            table: w.arg(3),
            columns: w.ty(3).fixed_dims()[1],
        }),
    };
    let matrix = w.model.matrix.filter(|_| takes_heads(heads));
    w.issue(move |i| match matrix {
        Some(rounded) => i.kernels.attention_matrix(i.stream, &call, rounded),
        None => i.kernels.attention(i.stream, &call),
    });
    Ok(())
}

/// What the rows of operand 0 look at.
fn memory(w: &mut Walk<'_>, keys: StateId, values: StateId) -> Result<Memory, String> {
    let (key_pages, value_pages) = (w.paged(keys)?, w.paged(values)?);
    let members = w.frame.members.iter();
    let lens: Vec<i32> = members
        .map(|m| w.held(m, keys).min(w.held(m, values)) as i32)
        .collect();
    let max_len = lens.iter().max().copied().unwrap_or(0) as usize;
    let most = match w.model.program.state(keys).kind {
        StateKind::Sequence { max_len, .. } => max_len,
        StateKind::Vector { .. } => 0,
    };
    // No more than there is a workspace for.
    let max_len = w.rounded(max_len).min(most.max(max_len));
    Ok(Memory {
        keys: key_pages,
        values: value_pages,
        sequences: w.sequences(w.ty(0).lead())?,
        lens: w.stage.push(lens)?,
        max_len,
    })
}

/// Attention over sequence states.
pub fn state_attention(
    w: &mut Walk<'_>,
    heads: Heads,
    keys: StateId,
    values: StateId,
) -> Result<(), String> {
    let memory = memory(w, keys, values)?;
    let rows = w.num_rows(w.ty(0));
    let workspace = if memory.max_len > SPLIT {
        w.temporary(workspace_bytes(rows, heads, memory.max_len) / ELEM)
    } else {
        DevicePtr::NULL
    };
    let (q, out) = (w.arg(0), w.out(0));
    w.issue(move |i| {
        let (k, s) = (i.kernels, i.stream);
        k.state_attention(s, q, &memory, heads, out, rows, workspace)
    });
    Ok(())
}

/// Additive attention over sequence states.
pub fn additive_attention(w: &mut Walk<'_>, keys: StateId, values: StateId) -> Result<(), String> {
    let memory = memory(w, keys, values)?;
    let rows = w.num_rows(w.ty(0));
    let (q, v, out) = (w.arg(0), w.arg(1), w.out(0));
    w.issue(move |i| {
        let (k, s) = (i.kernels, i.stream);
        k.additive_attention(s, q, v, &memory, out, rows)
    });
    Ok(())
}
