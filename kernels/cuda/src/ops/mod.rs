//! Nodes, by family. Each writes tables and leaves commands; see [`crate::exec`].

mod attention;
mod image;
mod linear;
mod rowwise;
mod state;

use lazybatch_graph::Op;

use crate::exec::Walk;
use crate::host;

/// Walks the node that `w` stands at.
///
/// # Errors
/// What makes it impossible to run.
pub fn walk(w: &mut Walk<'_>) -> Result<(), String> {
    match w.op() {
        Op::Input { input, at } => state::input(w, *input, *at),
        Op::Linear {
            bias,
            act,
            residual,
        } => linear::linear(w, *bias, *act, *residual),
        Op::Binary(op) => rowwise::binary(w, *op),
        Op::Unary(act) => rowwise::unary(w, *act),
        Op::Elementwise(steps) => rowwise::elementwise(w, steps),
        Op::Scale(factor) => rowwise::scale(w, *factor),
        Op::LayerNorm { eps } => rowwise::layer_norm(w, *eps),
        Op::AddLayerNorm { eps } => rowwise::add_layer_norm(w, *eps),
        Op::RmsNorm { eps } => rowwise::rms_norm(w, *eps),
        Op::Softmax => rowwise::softmax(w),
        Op::Embedding | Op::EmbeddingBag => rowwise::embedding(w),
        Op::AddPosition => rowwise::add_position(w),
        Op::Rope {
            heads, dim, past, ..
        } => rowwise::rope(w, *heads, *dim, *past),
        Op::Attention {
            heads,
            seen,
            cap,
            bias,
        } => attention::attention(w, *heads, *seen, *cap, *bias),
        Op::StateAttention {
            heads,
            keys,
            values,
        } => attention::state_attention(w, *heads, *keys, *values),
        Op::AdditiveAttention { keys, values } => attention::additive_attention(w, *keys, *values),
        Op::LstmCell { h, c, proj, ahead } => linear::lstm(w, *h, *c, *proj, *ahead),
        Op::GruCell { h, ahead } => linear::gru(w, *h, *ahead),
        Op::Conv2d {
            window,
            groups,
            bias,
            residual,
            act,
        } => image::conv2d(w, *window, *groups, *bias, *residual, *act),
        Op::BatchNorm { eps } => image::batch_norm(w, *eps),
        Op::Pool2d { pool, window } => image::pool2d(w, *pool, *window),
        Op::GlobalAveragePool => image::global_average_pool(w),
        Op::Reshape { .. } => rowwise::reshape(w),
        Op::Concat => rowwise::concat(w),
        Op::Slice { start, len } => rowwise::slice(w, *start, *len),
        Op::Interaction => rowwise::interaction(w),
        Op::MeanRows => rowwise::mean_rows(w),
        Op::FirstRow => rowwise::first_row(w),
        Op::LastRow => rowwise::last_row(w),
        Op::ArgMax => rowwise::arg_max(w),
        Op::Sample => rowwise::sample(w),
        Op::TopK { k, largest } => rowwise::top_k(w, *k, *largest),
        Op::VecRead { state } => state::vec_read(w, *state),
        Op::VecWrite { state } => state::vec_write(w, *state),
        Op::SeqRead { state, at } => state::seq_read(w, *state, *at),
        Op::SeqWrite { state, at } => state::seq_write(w, *state, *at),
        Op::Emit { output } => state::emit(w, *output),
        Op::Stop { token } => state::stop(w, *token),
        Op::Tensor(_) | Op::Custom(_) => host::walk(w),
    }
}
