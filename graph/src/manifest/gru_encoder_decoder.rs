//! A GRU encoder-decoder without attention: the decoder goes on from the encoder's last state.
//!
//! Input `source [len]`, output `tokens [len]`, greedy, the stop token included. Tensors are
//! called as those of `g2p_en`: `enc_emb`, `enc_w_ih`, `enc_w_hh`, `enc_b_ih`, `enc_b_hh`, the same
//! with `dec_`, and `fc_w`, `fc_b`; matrices `[out, in]`, gates in the order r, z, n.
//! Source: `g2p_en` 2.1.0, `g2p_en/g2p.py`.

use super::Source;
use super::layers::Layers;
use crate::builder::{Fused, Greedy};
use crate::dtype::DType;
use crate::error::Error;
use crate::ids::ValueId;
use crate::program::Repeat;

/// Builds it.
pub(super) fn build(source: &Source<'_>, l: &mut Layers<'_>) -> Result<(), Error> {
    let (sizes, tokens) = (&source.sizes, &source.tokens);
    let hidden = sizes.size("hidden")?;
    let embed = sizes.size_if("embed")?.unwrap_or(hidden);
    let (from, to) = (sizes.size("source_vocab")?, sizes.size("target_vocab")?);
    let max_len = sizes.size("max_len")?;
    let (start, stop) = (tokens.token("start", to)?, tokens.token("stop", to)?);
    let max = tokens.number("max_steps", 1..=1 << 20)? as u32;

    let ids = l.b.sequence_ids("source", max_len, from);
    let greedy = Greedy::sampled(&mut l.b, start, stop);
    let h = l.b.vector_state("h", DType::F32, &[hidden], 0.0);

    l.b.begin_block("encoder", Repeat::PerInputStep { stride: 1 });
    let ids = l.b.read_input("source", ids);
    let table = l.weight("enc_emb", &[from, embed]);
    let x = l.b.embedding("encoder.embed", ids, table);
    let cell = gates(l, "enc", embed, hidden);
    l.b.gru_cell("encoder.gru", x, cell, h);

    l.b.begin_block("decoder", Repeat::UntilStop { max });
    let token = greedy.read(&mut l.b);
    let table = l.weight("dec_emb", &[to, embed]);
    let x = l.b.embedding("decoder.embed", token, table);
    let cell = gates(l, "dec", embed, hidden);
    let x = l.b.gru_cell("decoder.gru", x, cell, h);
    let w = l.matrix("fc_w", [hidden, to]);
    let bias = l.weight("fc_b", &[to]);
    let logits = l.b.linear("decoder.out", x, w, Fused::bias(bias));
    greedy.choose(&mut l.b, logits);
    Ok(())
}

/// The weights of a cell.
fn gates(l: &mut Layers<'_>, side: &str, embed: usize, hidden: usize) -> [ValueId; 4] {
    let gates = 3 * hidden;
    [
        l.matrix(&format!("{side}_w_ih"), [embed, gates]),
        l.matrix(&format!("{side}_w_hh"), [hidden, gates]),
        l.weight(&format!("{side}_b_ih"), &[gates]),
        l.weight(&format!("{side}_b_hh"), &[gates]),
    ]
}
