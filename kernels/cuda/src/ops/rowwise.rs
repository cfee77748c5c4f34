//! Nodes of rows: elementwise, norms, tables, choices.

use lazybatch_graph::chain;
use lazybatch_graph::{Act, Bin, Dim, StateId};
use smallvec::SmallVec;

use crate::context::DevicePtr;
use crate::exec::Walk;
use crate::kernels::Weights;
use crate::kernels::elementwise::Step;
use crate::kernels::sample::Sample;
use crate::kernels::top_k::TopK;
use crate::memory::ELEM;

type Done = Result<(), String>;

/// `a (op) b`, `b` of equal type or one row's or its last dimension's weight.
pub fn binary(w: &mut Walk<'_>, op: Bin) -> Done {
    let len = w.elems(w.ty(0));
    let period = if w.is_weight(1) {
        w.ty(1).row_elems()
    } else {
        len
    };
    let (a, b, out) = (w.arg(0), w.arg(1), w.out(0));
    w.issue(move |i| {
        i.kernels
            .binary(i.stream, op, a, b, out, len, period.max(1))
    });
    Ok(())
}

/// `act(x)`.
pub fn unary(w: &mut Walk<'_>, act: Act) -> Done {
    let (x, out, len) = (w.arg(0), w.out(0), w.elems(w.ty(0)));
    w.issue(move |i| i.kernels.unary(i.stream, act, x, out, len));
    Ok(())
}

/// `x`, then `steps`.
pub fn elementwise(w: &mut Walk<'_>, steps: &[chain::Step]) -> Done {
    let len = w.elems(w.ty(0));
    let table: Result<SmallVec<[Step; 8]>, _> = steps
        .iter()
        .map(|&step| {
            let elems = |i| match w.is_weight(i) {
                true => w.ty(i).row_elems(),
                false => len,
            };
            Step::new(step, step.operand().map(|i| (w.arg(i), elems(i).max(1))))
        })
        .collect();
    let table = w.stage.push(table.map_err(|e| e.to_string())?)?;
    let (x, out, num) = (w.arg(0), w.out(0), steps.len());
    w.issue(move |i| i.kernels.elementwise(i.stream, x, out, len, table, num));
    Ok(())
}

/// `x * factor`.
pub fn scale(w: &mut Walk<'_>, factor: f32) -> Done {
    let (x, out, len) = (w.arg(0), w.out(0), w.elems(w.ty(0)));
    w.issue(move |i| i.kernels.scale(i.stream, factor, x, out, len));
    Ok(())
}

/// Rows of the last dimension of operand 0, and its size.
fn last_rows(w: &Walk<'_>) -> (usize, usize) {
    let width = w.last_dim(0);
    (w.elems(w.ty(0)) / width.max(1), width)
}

/// Layer normalisation.
pub fn layer_norm(w: &mut Walk<'_>, eps: f32) -> Done {
    let (rows, width) = last_rows(w);
    let (x, gamma, beta, out) = (w.arg(0), w.arg(1), w.arg(2), w.out(0));
    w.issue(move |i| {
        let (k, s) = (i.kernels, i.stream);
        k.layer_norm(s, x, gamma, beta, eps, out, rows, width)
    });
    Ok(())
}

/// Sum and its layer normalisation.
pub fn add_layer_norm(w: &mut Walk<'_>, eps: f32) -> Done {
    let (rows, width) = last_rows(w);
    let (x, y, gamma, beta) = (w.arg(0), w.arg(1), w.arg(2), w.arg(3));
    let (sum, out) = (w.out(0), w.out(1));
    w.issue(move |i| {
        let (k, s) = (i.kernels, i.stream);
        k.add_layer_norm(s, x, y, gamma, beta, eps, sum, out, rows, width)
    });
    Ok(())
}

/// Root-mean-square normalisation.
pub fn rms_norm(w: &mut Walk<'_>, eps: f32) -> Done {
    let (rows, width) = last_rows(w);
    let (x, gamma, out) = (w.arg(0), w.arg(1), w.out(0));
    w.issue(move |i| {
        i.kernels
            .rms_norm(i.stream, x, gamma, eps, out, rows, width)
    });
    Ok(())
}

/// Softmax over the last dimension.
pub fn softmax(w: &mut Walk<'_>) -> Done {
    let (rows, width) = last_rows(w);
    let (x, out) = (w.arg(0), w.out(0));
    w.issue(move |i| i.kernels.softmax(i.stream, x, out, rows, width));
    Ok(())
}

/// Rows of a table by id, or sums of them.
pub fn embedding(w: &mut Walk<'_>) -> Done {
    let (rows, bag) = (w.num_rows(w.ty(0)), w.ty(0).row_elems());
    let width = w.last_dim(1);
    let table_rows = w.ty(1).row_elems() / width.max(1);
    let (ids, table, out) = (w.arg(0), Weights::f32(w.arg(1)), w.out(0));
    w.issue(move |i| {
        let (k, s) = (i.kernels, i.stream);
        k.embedding_bag(s, ids, table, table_rows, out, rows, bag, width)
    });
    Ok(())
}

/// Adds position rows.
pub fn add_position(w: &mut Walk<'_>) -> Done {
    let (rows, width) = (w.num_rows(w.ty(0)), w.last_dim(1));
    let table_rows = w.ty(1).row_elems() / width.max(1);
    let positions = w.positions(w.ty(0).lead())?;
    let (x, table, out) = (w.arg(0), w.arg(1), w.out(0));
    w.issue(move |i| {
        let (k, s) = (i.kernels, i.stream);
        k.add_position(s, x, table, table_rows, positions, out, rows, width)
    });
    Ok(())
}

/// Rotary position embedding.
pub fn rope(w: &mut Walk<'_>, heads: usize, dim: usize, past: Option<StateId>) -> Done {
    let lead = w.ty(0).lead();
    let positions = match past {
        None => w.positions(lead)?,
        Some(state) => {
            let members = w.frame.members.iter();
            let each: Vec<i32> = members
                .flat_map(|m| std::iter::repeat_n(w.held(m, state) as i32, m.span(lead).1))
                .collect();
            w.stage.push(each)?
        }
    };
    let rows = w.num_rows(w.ty(0));
    let turns = w.model.turns[w.id().index()].expect("made at load");
    let (x, out) = (w.arg(0), w.out(0));
    w.issue(move |i| {
        let (k, s) = (i.kernels, i.stream);
        k.rope(s, x, positions, turns, out, rows, heads, dim)
    });
    Ok(())
}

/// The operand under another shape: in its place, if it dies here.
pub fn reshape(w: &mut Walk<'_>) -> Done {
    let (from, to, bytes) = (w.arg(0), w.out(0), w.elems(w.ty(0)) * ELEM);
    if from != to {
        w.issue(move |i| {
            // SAFETY: both are values of that size.
            unsafe { i.stream.copy(to, from, bytes) }
        });
    }
    Ok(())
}

/// Concatenation along the first fixed dimension.
pub fn concat(w: &mut Walk<'_>) -> Done {
    let rows = w.num_rows(w.out_ty(0));
    let num = w.node().inputs.len();
    let parts: Vec<_> = (0..num).map(|i| (w.arg(i), w.ty(i).row_elems())).collect();
    let out = w.out(0);
    w.issue(move |i| i.kernels.concat(i.stream, &parts, out, rows));
    Ok(())
}

/// Some features of a row.
pub fn slice(w: &mut Walk<'_>, start: usize, len: usize) -> Done {
    let (rows, width) = (w.num_rows(w.ty(0)), w.ty(0).row_elems());
    let (x, out) = (w.arg(0), w.out(0));
    w.issue(move |i| i.kernels.slice(i.stream, x, out, rows, width, start, len));
    Ok(())
}

/// Pairwise dot products.
pub fn interaction(w: &mut Walk<'_>) -> Done {
    let dims = w.ty(0).fixed_dims();
    let (rows, vectors, dim) = (w.num_rows(w.ty(0)), dims[0], dims[1]);
    let (x, out) = (w.arg(0), w.out(0));
    w.issue(move |i| i.kernels.interaction(i.stream, x, out, rows, vectors, dim));
    Ok(())
}

/// Mean over each member's own rows.
pub fn mean_rows(w: &mut Walk<'_>) -> Done {
    let (num, width) = (w.frame.members.len(), w.ty(0).row_elems());
    let members = w.members(w.ty(0).lead())?;
    let (x, out) = (w.arg(0), w.out(0));
    w.issue(move |i| i.kernels.mean_rows(i.stream, x, members, out, num, width));
    Ok(())
}

/// Each member's first row.
pub fn first_row(w: &mut Walk<'_>) -> Done {
    let (num, width) = (w.frame.members.len(), w.ty(0).row_elems());
    let members = w.members(w.ty(0).lead())?;
    let (x, out) = (w.arg(0), w.out(0));
    w.issue(move |i| i.kernels.first_row(i.stream, x, members, out, num, width));
    Ok(())
}

/// Each member's last own row.
pub fn last_row(w: &mut Walk<'_>) -> Done {
    let (num, width) = (w.frame.members.len(), w.ty(0).row_elems());
    let members = w.members(w.ty(0).lead())?;
    let (x, out) = (w.arg(0), w.out(0));
    w.issue(move |i| i.kernels.last_row(i.stream, x, members, out, num, width));
    Ok(())
}

/// Index of the largest element.
pub fn arg_max(w: &mut Walk<'_>) -> Done {
    let (rows, width) = (w.num_rows(w.ty(0)), w.ty(0).row_elems());
    let (x, out) = (w.arg(0), w.out(0));
    w.issue(move |i| i.kernels.arg_max(i.stream, x, out, rows, width));
    Ok(())
}

/// Tokens drawn by their scores.
pub fn sample(w: &mut Walk<'_>) -> Done {
    let lead = w.ty(0).lead();
    let is_loop = w.repeat().is_loop();
    // A sample's row has no place among others.
    let positions = if is_loop || lead == Some(Dim::Rows) {
        w.positions(lead)?
    } else {
        DevicePtr::NULL
    };
    let call = Sample {
        logits: w.arg(0),
        how: w.arg(1),
        positions,
        first: u32::from(is_loop),
        out: w.out(0),
        rows: w.num_rows(w.ty(0)),
        width: w.ty(0).row_elems(),
    };
    w.issue(move |i| i.kernels.sample(i.stream, &call));
    Ok(())
}

/// The first of a row in order, and their indices.
pub fn top_k(w: &mut Walk<'_>, k: usize, largest: bool) -> Done {
    let (rows, width) = last_rows(w);
    let call = TopK {
        x: w.arg(0),
        values: w.out(0),
        ids: w.out(1),
        rows,
        width,
        k,
        largest,
    };
    w.issue(move |i| i.kernels.top_k(i.stream, &call));
    Ok(())
}
