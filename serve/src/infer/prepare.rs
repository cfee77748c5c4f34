//! Makes the engine's requests of a request: checks its tensors against the model.
//!
//! A request of several samples to a model over sequences, or of more than a launch holds, becomes
//! several requests of the engine, which batches them node by node with everybody else's.

use std::time::Duration;

use lazybatch_engine::Options;
use lazybatch_graph::Tensor;
use lazybatch_sla::Nanos;
use smallvec::{SmallVec, smallvec};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

use super::pending::DEFAULT;
use super::sampling::Wish;
use super::{Input, Request, Wanted, answer, sequence};
use crate::config::TEXT_INPUT;
use crate::config::controls::repeated;
use crate::dtype::{self, DataType};
use crate::error::{Error, Result};
use crate::explained;
use crate::host::Text;
use crate::model::{Engaged, Served};

/// Bytes of a text beyond which other work of the thread does not wait while it is tokenized.
const LONG: usize = 32 << 10;

/// What was made of a request that was found to be sound, but for its elements: others that say the same
/// to the same version are sound if theirs have the same sizes.
#[derive(Debug)]
pub struct Recipe {
    options: Options,
    timeout_us: u64,
    wish: Wish,
    samples: usize,
    /// Dimensions of the engine's tensors in order, and whose elements they have.
    tensors: Vec<(usize, Vec<usize>)>,
}

/// A request made ready for the engine.
pub struct Prepared {
    /// Inputs of the engine's requests, in order.
    pub calls: SmallVec<[Vec<Tensor>; 1]>,
    /// Samples of all together.
    pub samples: usize,
    /// What they ask of it.
    pub options: Options,
    /// How long its turn may take to come, in microseconds; 0 is for ever.
    timeout_us: u64,
    /// How tokens are chosen.
    pub wish: Wish,
}

impl Prepared {
    /// Until when its turn has to come, from now.
    pub fn deadline(&self) -> Option<Instant> {
        let wait = Duration::from_micros(self.timeout_us);
        (self.timeout_us > 0).then(|| Instant::now() + wait)
    }
}

/// Checks a request and makes the engine's requests of it.
///
/// # Errors
/// What is wrong with it.
pub fn prepare(served: &Served, own: &Engaged, request: &Request) -> Result<Prepared> {
    let recipe = request.recipe.as_ref();
    if let Some(recipe) = recipe.and_then(|kept| kept.get()) {
        return recipe.prepare(served, request);
    }
    let prepared = prepare_anew(served, own, request)?;
    if let Some(kept) = recipe
        && let Some(recipe) = Recipe::of(served, own, request, &prepared)
    {
        // Another may have been faster, with the same.
        let _ = kept.set(recipe);
    }
    Ok(prepared)
}

impl Recipe {
    /// None of a request whose tensors have more in them than its elements.
    fn of(served: &Served, own: &Engaged, request: &Request, prepared: &Prepared) -> Option<Self> {
        let known = &served.known.inputs;
        let are_own = known.iter().all(|k| !k.is_control && !k.is_carried);
        let [call] = &prepared.calls[..] else {
            return None;
        };
        if !are_own || own.program.sampling().is_some() || call.len() != known.len() {
            return None;
        }
        let tensors = known.iter().zip(call).map(|(known, tensor)| {
            let at = request.inputs.iter().position(|i| i.name == known.name);
            Some((at?, tensor.dims.clone()))
        });
        Some(Self {
            options: prepared.options.clone(),
            timeout_us: prepared.timeout_us,
            wish: prepared.wish,
            samples: prepared.samples,
            tensors: tensors.collect::<Option<_>>()?,
        })
    }

    fn prepare(&self, served: &Served, request: &Request) -> Result<Prepared> {
        let known = served.known.inputs.iter();
        let tensors = self.tensors.iter().zip(known).map(|((at, dims), known)| {
            let input = &request.inputs[*at];
            dtype::to_tensor(input.data_type, known.held, dims.clone(), &input.data)
                .map_err(|e| unfit(served, input, e))
        });
        Ok(Prepared {
            calls: smallvec![tensors.collect::<Result<_>>()?],
            samples: self.samples,
            options: Options {
                count: request.count,
                ..self.options.clone()
            },
            timeout_us: self.timeout_us,
            wish: self.wish,
        })
    }
}

fn prepare_anew(served: &Served, own: &Engaged, request: &Request) -> Result<Prepared> {
    let (options, timeout_us) = options(served, request)?;
    let wish = Wish::of(served, &request.params)?;
    let text = request.inputs.iter().find(|i| i.name == TEXT_INPUT);
    let (calls, samples) = match (text, &served.text) {
        (Some(text), Some(_)) => from_text(served, own, request, text, &wish)?,
        _ => from_tensors(served, own, request, &options, &wish)?,
    };
    // To a model without sequences an id says nothing.
    let is_part = options.sequence.is_some() && (served.is_sequence() || served.is_stateful());
    if calls.len() > 1 && is_part {
        let what = format!("request of a sequence to model '{}'", served.name);
        return Err(Error::expected(what, "one sample", samples));
    }
    check_room(served, options.priority, (calls.len(), samples))?;
    check_wanted(served, request)?;
    answer::check_regions(served, request, samples)?;
    // The engine looks too, but what the response cache answers does not get there.
    served.check_class(options.class.as_deref())?;
    Ok(Prepared {
        calls,
        samples,
        options,
        timeout_us,
        wish,
    })
}

/// Looks whether a request that becomes `num` of the engine's finds room for all of them in queues that
/// are empty: who waited for that would wait for ever.
fn check_room(served: &Served, priority: u8, (num, samples): (usize, usize)) -> Result<()> {
    let settings = &served.settings;
    let of_level = settings.max_queue_by_level.get(&priority).copied();
    let most = of_level.map_or(settings.max_queue, |own| own.min(settings.max_queue));
    // One finds a place or waits for it, as any does.
    if num <= most.max(1) {
        return Ok(());
    }
    let what = format!("request of {samples} samples to model '{}'", served.name);
    let expected = format!("samples for at most {most} places in the queue");
    Err(Error::expected(
        what,
        expected,
        format!("samples for {num}"),
    ))
}

/// Looks whether the model has the outputs that are wanted, each of which is made once.
///
/// # Errors
/// An output that there is not, or twice.
pub fn check_wanted(served: &Served, request: &Request) -> Result<()> {
    if request.wanted.is_empty() {
        return Ok(());
    }
    let outputs = &served.config.output;
    let mut is_wanted = vec![false; outputs.len()];
    for Wanted { name, .. } in &request.wanted {
        let Some(at) = outputs.iter().position(|o| o.name == *name) else {
            return Err(Error::Invalid(format!(
                "unexpected inference output '{name}' for model '{}'",
                served.name
            )));
        };
        if std::mem::replace(&mut is_wanted[at], true) {
            let what = format!("output '{name}' of model '{}'", served.name);
            return Err(Error::expected(what, "it once", "it twice"));
        }
    }
    Ok(())
}

/// What a request's parameters ask of the engine, and how long it may wait, in microseconds; 0 is
/// for ever.
fn options(served: &Served, request: &Request) -> Result<(Options, u64)> {
    let params = &request.params;
    let settings = &served.settings;
    let sequence = sequence::id(params)?;
    check_sequence(served, sequence)?;
    let stated = params.number("timeout")?.unwrap_or(0);
    let class = params.text("sla_class")?;
    let priority = params.number("priority")?.unwrap_or(0);
    let priority = settings.priority(priority, class.unwrap_or(DEFAULT));
    let queue = settings.queue(priority);
    let (timeout_us, delay_after) = match (queue.timeout_us(stated), queue.delays) {
        (0, true) => (0, None),
        (us, true) => (0, Some(Nanos(us.saturating_mul(1000)))),
        (us, false) => (us, None),
    };
    let steps = match params.number("max_tokens")? {
        Some(steps) => Some(steps),
        None => params.number("max_steps")?,
    };
    if steps == Some(0) {
        let expected = "1 or more, for an answer has a token";
        return Err(Error::expected(
            "parameter 'max_tokens' or 'max_steps'",
            expected,
            0,
        ));
    }
    let steps = steps.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let options = Options {
        class: class.map(str::to_owned),
        sla: params.positive("sla_ms")?.map(Nanos::from_ms_f64),
        priority,
        sequence,
        sequence_start: params.flag("sequence_start")?,
        sequence_end: params.flag("sequence_end")?,
        delay_after,
        max_steps: steps.or(settings.max_steps),
        explain: params.flag(explained::ASKS)?,
        count: request.count,
        ..Options::default()
    };
    Ok((options, timeout_us))
}

/// Looks whether a request says which sequence it is of, where it has to.
///
/// # Errors
/// None stated.
pub fn check_sequence(served: &Served, stated: Option<u64>) -> Result<()> {
    if served.is_sequence() && stated.is_none() {
        return Err(Error::Invalid(format!(
            "inference request to model '{}' must specify a non-zero or non-empty correlation ID",
            served.name
        )));
    }
    Ok(())
}

fn from_text(
    served: &Served,
    own: &Engaged,
    request: &Request,
    text: &Input,
    wish: &Wish,
) -> Result<(SmallVec<[Vec<Tensor>; 1]>, usize)> {
    let codec = served
        .text
        .as_ref()
        .ok_or_else(|| unexpected(served, text))?;
    if let Some(other) = request.inputs.iter().find(|i| i.name != TEXT_INPUT) {
        let what = format!("inputs of model '{}'", served.name);
        let expected = format!("'{TEXT_INPUT}' alone, or tokens without it");
        return Err(Error::expected(
            what,
            expected,
            format!("'{}' too", other.name),
        ));
    }
    let what = format!("input '{TEXT_INPUT}' of model '{}'", served.name);
    let fail = |expected: &str, got: String| Error::expected(&what, expected, got);
    if text.data_type != DataType::Bytes {
        return Err(fail("data-type BYTES", text.data_type.to_string()));
    }
    let parts =
        dtype::split_bytes(&text.data).map_err(|e| Error::Invalid(format!("{what}: {e}")))?;
    let num = parts.len();
    let fits = num > 0 && dtype::elements(&text.shape) == Some(num);
    let fits = fits
        && if served.batched {
            text.shape.first() == Some(&num)
        } else {
            num == 1
        };
    if !fits {
        let got = format!("shape {:?} with {num} texts", text.shape);
        return Err(fail("one text a sample", got));
    }
    check_samples(served, num)?;
    let calls = parts.into_iter().map(|part| {
        let text = std::str::from_utf8(part).map_err(|e| fail("UTF-8 text", e.to_string()))?;
        let inputs = tokenized(&**codec, text);
        let mut inputs = inputs.map_err(|e| Error::Invalid(format!("{what}: {e}")))?;
        if let Some(at) = own.program.sampling() {
            inputs.truncate(at.index());
            inputs.push(wish.tensor(1));
        }
        Ok(inputs)
    });
    Ok((calls.collect::<Result<_>>()?, num))
}

/// The inputs for a text. While a long one is tokenized, another thread goes on with what else there is to
/// do, where there may be another.
fn tokenized(codec: &dyn Text, text: &str) -> std::result::Result<Vec<Tensor>, String> {
    let has_others = |runtime: Handle| runtime.runtime_flavor() == RuntimeFlavor::MultiThread;
    if text.len() > LONG && Handle::try_current().is_ok_and(has_others) {
        return tokio::task::block_in_place(|| codec.inputs(text));
    }
    codec.inputs(text)
}

/// An input that the model does not have.
pub fn unexpected(served: &Served, input: &Input) -> Error {
    Error::Invalid(format!(
        "unexpected inference input '{}' for model '{}'",
        input.name, served.name
    ))
}

/// Looks at the number of samples of a request.
///
/// # Errors
/// None, or more than the model takes.
pub fn check_samples(served: &Served, samples: usize) -> Result<()> {
    if samples == 0 || samples > served.max_samples {
        return Err(Error::Invalid(format!(
            "inference request batch-size must be 1 to {} for '{}', got {samples}",
            served.max_samples, served.name
        )));
    }
    Ok(())
}

fn from_tensors(
    served: &Served,
    own: &Engaged,
    request: &Request,
    options: &Options,
    wish: &Wish,
) -> Result<(SmallVec<[Vec<Tensor>; 1]>, usize)> {
    let known = &served.known.inputs;
    let mut samples = None;
    let mut given: Vec<Option<&Input>> = vec![None; known.len()];
    for input in &request.inputs {
        let mut brought = known.iter().map(|t| (&t.name, t.is_control));
        let Some(at) = brought.position(|(name, is_control)| *name == input.name && !is_control)
        else {
            return Err(unexpected(served, input));
        };
        if given[at].replace(input).is_some() {
            let what = format!("input '{}' of model '{}'", input.name, served.name);
            return Err(Error::expected(what, "it once", "it twice"));
        }
        let listed = served.config.input.iter().find(|i| i.name == input.name);
        let listed = listed.and_then(|i| DataType::of_config(i.data_type));
        let data_type = listed.unwrap_or(known[at].data_type);
        same_samples(served, input, (data_type, &known[at].dims()), &mut samples)?;
    }
    let required = known.iter().zip(&given).filter(|(t, _)| t.is_own());
    check_missing(
        served,
        request,
        required.map(|(t, given)| (&*t.name, given.is_some())),
    )?;
    let samples = samples.unwrap_or(1);
    check_samples(served, samples)?;
    // Carried inputs may be left out, all of them.
    let num_carried = known.iter().filter(|t| t.is_carried).count();
    let brought = known
        .iter()
        .zip(&given)
        .filter(|(t, g)| t.is_carried && g.is_some());
    let brought = brought.count();
    if brought != 0 && brought != num_carried {
        let what = format!("state inputs of model '{}'", served.name);
        return Err(Error::expected(
            what,
            format!("all {num_carried} or none"),
            brought,
        ));
    }
    let mut calls = SmallVec::new();
    for first in (0..samples).step_by(own.chunk) {
        let num = own.chunk.min(samples - first);
        let mut tensors = Vec::with_capacity(known.len());
        // A sequence starts with what its first request brings, or as the configuration says.
        let states = served.initial.as_ref();
        let states = states.filter(|_| brought == 0 && options.sequence_start);
        let mut states = states.into_iter().flatten();
        for (at, input) in given.iter().enumerate() {
            if let Some(input) = input {
                tensors.push(part(served, at, input, samples, first, num)?);
            } else if own.program.sampling().is_some_and(|i| i.index() == at) {
                tensors.push(wish.tensor(num));
            } else if known[at].is_control {
                tensors.push(control(served, at, num, options)?);
            } else if let Some(state) = states.next() {
                tensors.push(repeated(state, num));
            }
        }
        calls.push(tensors);
    }
    Ok((calls, samples))
}

/// What the control input `at` tells of a request.
fn control(served: &Served, at: usize, num: usize, options: &Options) -> Result<Tensor> {
    let known = &served.known.inputs[at];
    let mut controls = served.settings.controls.iter();
    let control = controls.find(|c| c.name == known.name);
    let control = control.ok_or_else(|| Error::Internal(format!("no control {}", known.name)))?;
    let place = (
        options.sequence.unwrap_or(0),
        options.sequence_start,
        options.sequence_end,
    );
    control.tensor(known, num, place)
}

/// Looks for inputs that the model needs, given as their names and whether they came.
///
/// # Errors
/// Those that are missing.
pub fn check_missing<'a>(
    served: &Served,
    request: &Request,
    required: impl Iterator<Item = (&'a str, bool)> + Clone,
) -> Result<()> {
    let missing = required.clone().filter(|(_, is_there)| !is_there);
    let missing: Vec<_> = missing.map(|(name, _)| format!("'{name}'")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "expected {} inputs but got {} inputs for model '{}': missing required input(s) [{}]",
        required.count(),
        request.inputs.len(),
        served.name,
        missing.join(",")
    )))
}

/// Checks an input against its type and the dimensions of a sample; it has as many samples as those
/// before it.
///
/// # Errors
/// Another type, shape or number of samples.
pub fn same_samples(
    served: &Served,
    input: &Input,
    of: (DataType, &[i64]),
    samples: &mut Option<usize>,
) -> Result<()> {
    let own = samples_of(served, input, of)?;
    if *samples.get_or_insert(own) != own {
        let what = format!(
            "samples of input '{}' of model '{}'",
            input.name, served.name
        );
        return Err(Error::expected(what, samples.unwrap_or(own), own));
    }
    Ok(())
}

/// Checks type and shape of an input; the number of its samples.
fn samples_of(served: &Served, input: &Input, of: (DataType, &[i64])) -> Result<usize> {
    let (expected, dims) = of;
    if input.data_type != expected {
        return Err(Error::Invalid(format!(
            "inference input '{}' data-type is '{}', but model '{}' expects '{expected}'",
            input.name, input.data_type, served.name
        )));
    }
    let samples = served.batched.then_some(-1);
    let own = usize::from(served.batched);
    let fits = |(&want, &got): (&i64, &usize)| want == -1 || usize::try_from(want) == Ok(got);
    // A sample that is one number may be written as a list of it.
    let scalar = dims.is_empty() && input.shape.len() == own + 1 && input.shape[own] == 1;
    let same = scalar
        || (input.shape.len() == own + dims.len()
            && dims.iter().zip(&input.shape[own..]).all(fits));
    // A configuration may be stricter than the model, or have other dimensions for the same elements.
    let mut listed = served.config.input.iter();
    let listed = listed.find(|i| i.name == input.name);
    let stated = listed.filter(|_| !scalar).map(|i| {
        let samples = (served.config.max_batch_size > 0).then_some(-1);
        samples.into_iter().chain(i.dims.iter().copied())
    });
    let is_stated = stated.clone().is_none_or(|stated| {
        let num = stated.clone().count();
        num == input.shape.len()
            && stated
                .zip(&input.shape)
                .all(|(want, got)| fits((&want, got)))
    });
    let is_reshaped = listed.is_some_and(|i| i.reshape.is_some());
    if !(same || is_reshaped) || !is_stated {
        let own = samples.into_iter().chain(dims.iter().copied());
        let expected: Vec<i64> = stated.map_or_else(|| own.collect(), Iterator::collect);
        return Err(Error::Invalid(format!(
            "unexpected shape for input '{}' for model '{}'. Expected {expected:?}, got {:?}",
            input.name, served.name, input.shape
        )));
    }
    Ok(if served.batched { input.shape[0] } else { 1 })
}

/// What is wrong with the elements of an input.
fn unfit(served: &Served, input: &Input, why: String) -> Error {
    let (name, model) = (&input.name, &served.name);
    Error::Invalid(format!("input '{name}' of model '{model}': {why}"))
}

/// Samples `first..first + num` of an input as the engine takes them.
fn part(
    served: &Served,
    at: usize,
    input: &Input,
    samples: usize,
    first: usize,
    num: usize,
) -> Result<Tensor> {
    let tensor = &served.known.inputs[at];
    let fail = |e: String| unfit(served, input, e);
    let size = input.data_type.size().unwrap_or(0);
    let all = dtype::elements(&input.shape).and_then(|n| n.checked_mul(size));
    if all != Some(input.data.len()) {
        let expected = all.map_or("fewer".into(), |n| n.to_string());
        let got = input.data.len();
        return Err(fail(format!("expected {expected} bytes, got {got} bytes")));
    }
    let each = input.data.len() / samples;
    let bytes = input.data.slice(first * each..(first + num) * each);
    let mut dims = Vec::with_capacity(tensor.fixed.len() + 1);
    if tensor.is_sequence {
        dims.push(input.shape[usize::from(served.batched)]);
    } else {
        dims.push(num);
    }
    dims.extend(&tensor.fixed);
    dtype::to_tensor(input.data_type, tensor.held, dims, &bytes).map_err(fail)
}
