//! Products and recurrent cells.

use lazybatch_graph::{Act, StateId};

use crate::context::DevicePtr;
use crate::exec::Walk;
use crate::gemm::rounded_elems;
use crate::kernels::Epilogue;
use crate::kernels::gemm::Gemm;
use crate::kernels::recurrent::{GruGates, LstmGates, StateRows};
use crate::memory::ELEM;

/// `act(x w + bias) + residual`.
pub fn linear(
    w: &mut Walk<'_>,
    bias: bool,
    act: Option<Act>,
    residual: bool,
) -> Result<(), String> {
    let [k, n] = w.ty(1).fixed_dims()[..] else {
        return Err("weights are not [k, n]".into());
    };
    let null = DevicePtr::NULL;
    let product = Gemm {
        a: w.arg(0),
        a_rows: null,
        weights: w.right(1),
        out: w.out(0),
        m: w.elems(w.ty(0)) / k.max(1),
        k,
        n,
        resume: false,
        epilogue: Epilogue {
            bias: if bias { w.arg(2) } else { null },
            act,
            residual: if residual {
                w.arg(2 + usize::from(bias))
            } else {
                null
            },
        },
    };
    run(w, product);
    Ok(())
}

/// Leaves a product, with memory for its left side in the form that it wants.
fn run(w: &mut Walk<'_>, product: Gemm) {
    let elems = rounded_elems(&product, !w.deterministic);
    let rounded = if elems == 0 {
        DevicePtr::NULL
    } else {
        w.temporary(elems)
    };
    w.issue(move |i| i.products.run(i.kernels, i.stream, &product, rounded));
}

/// The product of a vector state with operand `operand`, added to `out` if `resume`.
fn recurrent(
    w: &mut Walk<'_>,
    state: StateId,
    operand: usize,
    out: DevicePtr,
    resume: bool,
    bias: DevicePtr,
) -> Result<(), String> {
    let dims = w.ty(operand).fixed_dims();
    let (k, n, rows) = (dims[0], dims[1], w.frame.samples);
    let (pool, from) = (w.vector(state).0, w.state_rows()?.0);
    let product = Gemm {
        a: pool,
        a_rows: from,
        weights: w.right(operand),
        out,
        m: rows,
        k,
        n,
        resume,
        epilogue: Epilogue {
            bias,
            ..Epilogue::default()
        },
    };
    if w.deterministic {
        run(w, product);
        return Ok(());
    }
    // A library takes its rows one behind another.
    let packed = w.temporary(rows * k);
    w.issue(move |i| i.kernels.gather_rows(i.stream, pool, from, packed, rows, k));
    let product = Gemm {
        a: packed,
        a_rows: DevicePtr::NULL,
        ..product
    };
    run(w, product);
    Ok(())
}

/// The product of `x: [samples, k]` with operand `operand`.
fn product(w: &mut Walk<'_>, x: DevicePtr, operand: usize, out: DevicePtr, bias: DevicePtr) {
    let dims = w.ty(operand).fixed_dims();
    let product = Gemm {
        a: x,
        a_rows: DevicePtr::NULL,
        weights: w.right(operand),
        out,
        m: w.frame.samples,
        k: dims[0],
        n: dims[1],
        resume: false,
        epilogue: Epilogue {
            bias,
            ..Epilogue::default()
        },
    };
    run(w, product);
}

/// One LSTM step; `ahead` if the product with `w_ih` is the operand.
pub fn lstm(
    w: &mut Walk<'_>,
    h: StateId,
    c: StateId,
    proj: bool,
    ahead: bool,
) -> Result<(), String> {
    let null = DevicePtr::NULL;
    // Operands behind `w_ih`, or where that would be.
    let next = 1 + usize::from(!ahead);
    let dims = w.ty(next).fixed_dims();
    let (features, width, rows) = (dims[0], dims[1], w.frame.samples);
    let hidden = width / 4;
    let gates = w.temporary(rows * width);
    let x = w.arg(0);
    if ahead {
        let bytes = rows * width * ELEM;
        w.issue(move |i| {
            // SAFETY: the operand, and scratch memory of its size.
            unsafe { i.stream.copy(gates, x, bytes) }
        });
    } else {
        product(w, x, 1, gates, null);
    }
    recurrent(w, h, next, gates, true, null)?;
    let (from, to) = w.state_rows()?;
    let out = if proj {
        w.temporary(rows * hidden)
    } else {
        w.out(0)
    };
    let hidden_pool = w.vector(h).0;
    let call = LstmGates {
        gates,
        recurrent: null,
        bias: w.arg(next + 1),
        cells: StateRows {
            pool: w.vector(c).0,
            from,
            to,
        },
        hidden_pool: if proj { null } else { hidden_pool },
        out,
        rows,
        hidden,
    };
    w.issue(move |i| i.kernels.lstm_gates(i.stream, &call));
    if proj {
        let projected = w.out(0);
        product(w, out, next + 2, projected, null);
        w.issue(move |i| {
            let (k, s) = (i.kernels, i.stream);
            k.scatter_rows(s, projected, to, hidden_pool, rows, features)
        });
    }
    Ok(())
}

/// One GRU step; `ahead` if the product with `w_ih`, bias added, is the operand.
pub fn gru(w: &mut Walk<'_>, h: StateId, ahead: bool) -> Result<(), String> {
    let null = DevicePtr::NULL;
    let [w_hh, b_hh] = if ahead { [1, 2] } else { [2, 4] };
    let dims = w.ty(w_hh).fixed_dims();
    let (hidden, width, rows) = (dims[0], dims[1], w.frame.samples);
    let own = w.temporary(rows * width);
    let bias = w.arg(b_hh);
    recurrent(w, h, w_hh, own, false, bias)?;
    let gates = if ahead {
        w.arg(0)
    } else {
        let gates = w.temporary(rows * width);
        let (x, bias) = (w.arg(0), w.arg(3));
        product(w, x, 1, gates, bias);
        gates
    };
    let (from, to) = w.state_rows()?;
    let call = GruGates {
        gates,
        bias: null,
        recurrent: own,
        recurrent_bias: null,
        states: StateRows {
            pool: w.vector(h).0,
            from,
            to,
        },
        out: w.out(0),
        rows,
        hidden,
    };
    w.issue(move |i| i.kernels.gru_gates(i.stream, &call));
    Ok(())
}
