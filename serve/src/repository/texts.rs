//! Text in and out of a model: its own, or that of the steps of an ensemble.
//!
//! Between two steps of one program there is no text: what a step writes and another reads are its tensors.
//! At the edge an ensemble reads what one of its steps does, and writes what one does, under the same
//! names as any other model; its program has that step's tensors there.

use std::fmt::Display;
use std::sync::Arc;

use lazybatch_graph::{Step, Tensor};

use super::ensemble::Refusal;
use crate::config::{Known, TEXT_INPUT, TEXT_OUTPUT};
use crate::error::Error;
use crate::host::Text;

/// Text of a model.
pub struct Texts {
    /// What reads and writes it.
    pub codec: Option<Arc<dyn Text>>,
    /// It takes text in place of its inputs.
    pub reads: bool,
    /// It gives text beside its outputs.
    pub writes: bool,
}

/// A step of an ensemble.
pub struct OfStep<'a> {
    /// Name of its model.
    pub model: &'a str,
    /// Its tensors.
    pub known: &'a Known,
    /// Its tokenizer.
    pub codec: Option<&'a Arc<dyn Text>>,
}

/// Text of an ensemble: of two of its steps, or of one.
struct OfSteps {
    reads: Option<Arc<dyn Text>>,
    /// With the outputs of the program that are those of the step, in its order.
    writes: Option<(Arc<dyn Text>, Vec<usize>)>,
}

impl Text for OfSteps {
    fn inputs(&self, text: &str) -> std::result::Result<Vec<Tensor>, String> {
        let codec = self.reads.as_ref();
        codec.ok_or("it reads no text")?.inputs(text)
    }

    fn answer(&self, outputs: &[Tensor]) -> std::result::Result<Option<String>, String> {
        let Some((codec, places)) = &self.writes else {
            return Ok(None);
        };
        // Of an answer that comes step by step only the first ones are there.
        let own = places.iter().filter_map(|&at| outputs.get(at).cloned());
        codec.answer(&own.collect::<Vec<_>>())
    }
}

impl Texts {
    /// Of a model with that tokenizer.
    pub fn of_model(codec: Option<Arc<dyn Text>>) -> Self {
        let nothing = [Tensor::from_i32(&[0], &[])];
        let writes = |codec: &Arc<dyn Text>| matches!(codec.answer(&nothing), Ok(Some(_)));
        Self {
            reads: codec.is_some(),
            writes: codec.as_ref().is_some_and(writes),
            codec,
        }
    }

    /// Of an ensemble of `steps`, whose maps are those of `joined`: where one is text, the maps and the
    /// ensemble's `inputs` and `outputs` get the step's tensors in its place.
    ///
    /// # Errors
    /// Text of a step that has none; text between steps, under another name or of several, which one
    /// program cannot have.
    pub fn of_steps(
        steps: &[OfStep<'_>],
        joined: &mut [Step<'_>],
        inputs: &mut Vec<String>,
        outputs: &mut Vec<String>,
    ) -> Result<Self, Refusal> {
        let (mut reads, mut writes) = (None, None);
        for (at, (step, maps)) in steps.iter().zip(joined.iter_mut()).enumerate() {
            let place = |text| format!("step {at}, model {}: {text}", step.model);
            let is_text = |tensors: &[crate::config::KnownTensor], name: &str| {
                tensors.iter().all(|t| t.name != name)
            };
            if is_text(&step.known.inputs, TEXT_INPUT)
                && let Some(tensor) = maps.inputs.remove(TEXT_INPUT)
            {
                let place = place(TEXT_INPUT);
                let codec = step.codec.filter(|_| step.known.reads_text);
                let codec = codec.ok_or_else(|| no_text(&place, "reads"))?;
                check_edge(&place, TEXT_INPUT, &tensor, inputs)?;
                if !maps.inputs.is_empty() || inputs.len() > 1 {
                    let expected = "no other input of the step or the ensemble beside it";
                    return Err(apart(place, expected, "others"));
                }
                // In the order in which the tokenizer gives them.
                let own = step.known.inputs.iter().filter(|t| t.is_own());
                let own = own.map(|t| t.name.clone());
                let own = own.map(|name| (name.clone(), format!("{TEXT_INPUT}.{name}")));
                let own: Vec<(String, String)> = own.collect();
                let tensors = own.iter().map(|(_, tensor)| tensor.clone()).collect();
                maps.inputs = own.into_iter().collect();
                if reads.replace((codec.clone(), tensors)).is_some() {
                    return Err(apart(place, "one step that reads text", "another"));
                }
            }
            if is_text(&step.known.outputs, TEXT_OUTPUT)
                && let Some(tensor) = maps.outputs.remove(TEXT_OUTPUT)
            {
                let place = place(TEXT_OUTPUT);
                let codec = step.codec.filter(|_| step.known.writes_text);
                let codec = codec.ok_or_else(|| no_text(&place, "writes"))?;
                check_edge(&place, TEXT_OUTPUT, &tensor, outputs)?;
                let tensors = step.known.outputs.iter().map(|t| {
                    let own = maps.outputs.entry(t.name.clone());
                    own.or_insert_with(|| format!("{TEXT_OUTPUT}.{}", t.name))
                        .clone()
                });
                let tensors: Vec<String> = tensors.collect();
                if writes.replace((codec.clone(), tensors)).is_some() {
                    return Err(apart(place, "one step that writes text", "another"));
                }
            }
        }
        let reads = reads.map(|(codec, tensors)| {
            *inputs = tensors;
            codec
        });
        let writes = writes.map(|(codec, tensors)| {
            // First, as pieces of a stream are made of the first output.
            outputs.retain(|name| name != TEXT_OUTPUT && !tensors.contains(name));
            outputs.splice(..0, tensors.iter().cloned());
            (codec, (0..tensors.len()).collect())
        });
        let (has_reads, has_writes) = (reads.is_some(), writes.is_some());
        let codec = (has_reads || has_writes).then(|| Arc::new(OfSteps { reads, writes }) as _);
        Ok(Self {
            codec,
            reads: has_reads,
            writes: has_writes,
        })
    }
}

/// Looks whether text is at the edge of the ensemble, under the name by which clients know it.
fn check_edge(place: &str, name: &str, tensor: &str, edge: &[String]) -> Result<(), Refusal> {
    if tensor == name && edge.iter().any(|own| own == name) {
        return Ok(());
    }
    let expected = format!("the ensemble's own '{name}', since steps hand on no text");
    Err(apart(place, expected, format!("'{tensor}'")))
}

fn apart(place: impl Display, expected: impl Display, got: impl Display) -> Refusal {
    Refusal::Apart(Error::expected(place, expected, got))
}

fn no_text(place: &str, does: &str) -> Error {
    Error::expected(place, format!("a model that {does} text"), "another")
}
