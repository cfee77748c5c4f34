//! Gates of recurrent cells, given their products.
//!
//! Source: LSTM as in Hochreiter and Schmidhuber 1997 with forget gates (Gers 2000), gate order
//! i, f, g, o; GRU as in Cho 2014 in the variant with the reset gate behind the recurrent product.

use lazybatch_graph::Op;

use super::{Kernels, Source, Takes, launch, per_item, size};
use crate::context::{DevicePtr, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "recurrent.cu",
    text: include_str!("../../cuda/recurrent.cu"),
    kernels: &["gru_gates", "lstm_gates"],
    takes: |_, node| Takes::those(matches!(node.op, Op::LstmCell { .. } | Op::GruCell { .. })),
};

/// Rows of a pool of vector states.
#[derive(Clone, Copy, Debug)]
pub struct StateRows {
    /// `[_, features]`.
    pub pool: DevicePtr,
    /// `[rows]` i32: where the state of each row is; null if row `r` has the pool's row `r`.
    pub from: DevicePtr,
    /// `[rows]` i32: where it goes; a negative entry leaves the pool as it is. May be `from`; null
    /// if row `r` goes to the pool's row `r`.
    pub to: DevicePtr,
}

/// Operands of [`Kernels::lstm_gates`].
#[derive(Clone, Copy, Debug)]
pub struct LstmGates {
    /// `x w_ih + h w_hh`, or `x w_ih` alone: `[rows, 4 * hidden]`.
    pub gates: DevicePtr,
    /// `h w_hh` where it is apart: `[rows, 4 * hidden]`; or null.
    pub recurrent: DevicePtr,
    /// `[4 * hidden]`.
    pub bias: DevicePtr,
    /// Cell states, `hidden` features.
    pub cells: StateRows,
    /// Pool of hidden states that `h'` is written to, at `cells.to`; or null (a cell with a
    /// projection).
    pub hidden_pool: DevicePtr,
    /// `h'`: `[rows, hidden]`; apart from the pools.
    pub out: DevicePtr,
    /// Rows.
    pub rows: usize,
    /// Features of the cell.
    pub hidden: usize,
}

/// Operands of [`Kernels::gru_gates`].
#[derive(Clone, Copy, Debug)]
pub struct GruGates {
    /// `x w_ih`: `[rows, 3 * hidden]`.
    pub gates: DevicePtr,
    /// `[3 * hidden]`, or null if `gates` has it.
    pub bias: DevicePtr,
    /// `h w_hh`: `[rows, 3 * hidden]`.
    pub recurrent: DevicePtr,
    /// `[3 * hidden]`, or null if `recurrent` has it.
    pub recurrent_bias: DevicePtr,
    /// Hidden states.
    pub states: StateRows,
    /// `h'`: `[rows, hidden]`; apart from the pools.
    pub out: DevicePtr,
    /// Rows.
    pub rows: usize,
    /// Features of the state.
    pub hidden: usize,
}

impl Kernels {
    /// `c' = sig(f) c + sig(i) tanh(g)`, `h' = sig(o) tanh(c')`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn lstm_gates(&self, stream: &Stream, g: &LstmGates) -> Result<(), CudaError> {
        if g.rows == 0 || g.hidden == 0 {
            return Ok(());
        }
        let elems = g.rows.saturating_mul(g.hidden);
        size("lstm_gates", "elements", elems.saturating_mul(4))?;
        let (len, hidden) = (elems as u32, g.hidden as u32);
        let StateRows { pool, from, to } = g.cells;
        launch!(
            self,
            stream,
            "lstm_gates",
            per_item(len),
            g.gates,
            g.recurrent,
            g.bias,
            pool,
            from,
            to,
            g.hidden_pool,
            g.out,
            len,
            hidden
        )
    }

    /// `r = sig(x_r + h_r)`, `z = sig(x_z + h_z)`, `n = tanh(x_n + r h_n)`, `h' = (1 - z) n + z h`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn gru_gates(&self, stream: &Stream, g: &GruGates) -> Result<(), CudaError> {
        if g.rows == 0 || g.hidden == 0 {
            return Ok(());
        }
        let elems = g.rows.saturating_mul(g.hidden);
        size("gru_gates", "elements", elems.saturating_mul(3))?;
        let (len, hidden) = (elems as u32, g.hidden as u32);
        let StateRows { pool, from, to } = g.states;
        launch!(
            self,
            stream,
            "gru_gates",
            per_item(len),
            g.gates,
            g.bias,
            g.recurrent,
            g.recurrent_bias,
            pool,
            from,
            to,
            g.out,
            len,
            hidden
        )
    }
}
