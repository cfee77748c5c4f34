//! Requests to chains: each becomes a request to every step, as a client would send it.
//!
//! A step is called as soon as all that it reads is there, beside the others that run; one that makes
//! nothing that leads to a wanted output is not, unless it is over sequences. What it reads it is
//! handed by name, in the representation of the protocol. Its request is one like any other of
//! its model: it is checked, waits, batches, is kept and is counted as those are.
//!
//! Invariants:
//! 1. Nothing waits for what chains hold: no step takes a place among the server's calls, and tensors
//!    between steps count as answers do, which there is always room for.
//! 2. A request that ends early ends what it has in the engine, and breaks the sequences that its
//!    steps are of.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use lazybatch_sla::{Nanos, Outcome, Time};

use super::pending::Pending;
use super::prepare::{
    check_missing, check_samples, check_sequence, check_wanted, same_samples, unexpected,
};
use super::sampling::{self, Wish};
use super::sequence::{self, PLACE, lost, refused};
use super::{
    Answer, Input, Output, Param, Params, Passage, Request, Stages, Wanted, answer, engine_bytes,
    run,
};
use crate::chain::{Chain, Link, Needs, Port};
use crate::dtype::{self, DataType};
use crate::error::{Error, Result};
use crate::memory::Tab;
use crate::model::Served;

/// A tensor as it is handed on.
#[derive(Clone, Debug)]
struct Value {
    data_type: DataType,
    shape: Vec<usize>,
    data: Bytes,
}

impl Value {
    /// Its dimensions where so many are wanted: a last one of 1 may be left out.
    fn shape(&self, rank: usize) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if shape.len() + 1 == rank {
            shape.push(1);
        } else if shape.len() == rank + 1 && shape.last() == Some(&1) {
            shape.pop();
        }
        shape
    }
}

/// Where a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nobody wants what it makes.
    Idle,
    Waits,
    /// With so many bytes of tensors in the engine.
    Runs(usize),
    Ended,
}

/// What its steps take of a request beside tensors.
struct Asked {
    /// What the client asks.
    params: Params,
    /// When it came, on the chain's clock.
    came: Time,
    /// The target of the whole.
    sla: Option<Nanos>,
    /// The priority level that the chain has for its class; 0 for none.
    priority: u8,
}

/// A request to a chain. Dropping it cancels what of it runs.
pub struct Running {
    served: Arc<Served>,
    chain: Arc<Chain>,
    asked: Asked,
    tensors: Vec<Option<Value>>,
    /// How many have not read each tensor.
    unread: Vec<usize>,
    stages: Vec<Stage>,
    running: FuturesUnordered<BoxFuture<'static, (usize, Result<Answer>)>>,
    /// What tensors between steps take.
    tab: Tab,
    passage: Passage,
    /// Of each step that ended and told why it took its time.
    explanations: Vec<(usize, String)>,
    /// Why it ended early; that its client has gone until something else is known.
    cause: Option<Error>,
}

/// Hands a request's inputs to the steps that read nothing else. They are no longer in the request.
///
/// # Errors
/// What is wrong with it, or why a step does not take it.
pub fn start(
    served: &Arc<Served>,
    chain: &Arc<Chain>,
    request: &mut Request,
    came: Time,
) -> Result<Running> {
    let ready = check(served, request).and_then(|samples| {
        let asked = Asked::of(served, &request.params, came)?;
        Ok((samples, asked))
    });
    let ready = ready.inspect_err(|e| refused(served, &request.params, e));
    let (samples, asked) = ready?;
    let needs = needs(served, chain, request);
    let stage = |&is_needed: &bool| match is_needed {
        true => Stage::Waits,
        false => Stage::Idle,
    };
    let mut running = Running {
        served: served.clone(),
        chain: chain.clone(),
        asked,
        tensors: inputs(served, chain, request, &needs.readers),
        stages: needs.links.iter().map(stage).collect(),
        unread: needs.readers,
        running: FuturesUnordered::new(),
        tab: served.memory.tab(),
        passage: Passage {
            arrival: came,
            first_launch: Time::MAX,
            finish: came,
            outcome: Outcome::Met,
            samples,
            requests: 0,
            launches: Some(lazybatch_engine::Launches::default()),
            stages: Stages::default(),
        },
        explanations: Vec::new(),
        cause: Some(Error::Unavailable("the request was cancelled".into())),
    };
    running.call_ready(request)?;
    Ok(running)
}

/// Runs a request that no client sent, one step behind the other, as [`run::rehearse`] does.
///
/// # Errors
/// What is wrong with it, or why a step has no answer.
pub fn rehearse(served: &Served, chain: &Chain, request: &mut Request) -> Result<Answer> {
    check(served, request)?;
    let Needs { links, readers } = needs(served, chain, request);
    let mut tensors = inputs(served, chain, request, &readers);
    let called = chain.links.iter().zip(links).filter(|(_, needed)| *needed);
    for (link, _) in called {
        let mut own = step_request(link, (&tensors, &readers), request);
        own.params.clone_from(&request.params);
        if !link.is_of_sequences() {
            own.params.retain(|key, _| !PLACE.contains(&key));
        }
        let answer = run::rehearse(&link.served, own).map_err(|e| of_step(link, e))?;
        keep((&mut tensors, &readers), link, answer);
    }
    outputs(served, chain, request, &tensors)
}

/// What makes the outputs that a request wants.
fn needs(served: &Served, chain: &Chain, request: &Request) -> Needs {
    let stated = &served.config.output;
    let wanted = answer::wanted(served, request);
    let places = wanted
        .iter()
        .map(|w| stated.iter().position(|o| o.name == w.name));
    chain.needs(places.flatten())
}

/// Checks what a request brings against the chain's configuration; the number of its samples.
fn check(served: &Served, request: &Request) -> Result<usize> {
    check_sequence(served, sequence::id(&request.params)?)?;
    Wish::of(served, &request.params)?;
    let stated = &served.config.input;
    // The axis of samples is that of the configuration, or stands among its dimensions.
    let is_stated = served.batched && served.config.max_batch_size == 0;
    let mut samples = None;
    let mut given: Vec<Option<&Input>> = vec![None; stated.len()];
    for input in &request.inputs {
        let own = stated.iter().position(|i| i.name == input.name);
        let Some(at) = own else {
            return Err(unexpected(served, input));
        };
        if given[at].replace(input).is_some() {
            let what = format!("input '{}' of model '{}'", input.name, served.name);
            return Err(Error::expected(what, "it once", "it twice"));
        }
        let data_type = DataType::of_config(stated[at].data_type).unwrap_or(DataType::Bytes);
        let dims = stated[at].dims.get(usize::from(is_stated)..);
        let dims = dims.unwrap_or_default();
        same_samples(served, input, (data_type, dims), &mut samples)?;
        check_size(served, input)?;
    }
    let required = stated.iter().zip(&given);
    let required = required.map(|(i, given)| (&*i.name, given.is_some()));
    check_missing(served, request, required)?;
    let samples = samples.unwrap_or(1);
    check_samples(served, samples)?;
    check_wanted(served, request)?;
    let class = request.params.text("sla_class")?;
    served.check_class(class)?;
    Ok(samples)
}

/// Looks whether an input has as many elements as its shape says.
fn check_size(served: &Served, input: &Input) -> Result<()> {
    let what = || format!("input '{}' of model '{}'", input.name, served.name);
    let num = dtype::elements(&input.shape);
    match input.data_type.size() {
        Some(size) => {
            let bytes = num.and_then(|n| n.checked_mul(size));
            if bytes != Some(input.data.len()) {
                let expected = bytes.map_or("fewer".into(), |n| n.to_string());
                let got = format!("{} bytes", input.data.len());
                return Err(Error::expected(what(), format!("{expected} bytes"), got));
            }
        }
        None => {
            let texts = dtype::split_bytes(&input.data);
            let texts = texts.map_err(|e| Error::Invalid(format!("{}: {e}", what())))?;
            if num != Some(texts.len()) {
                let got = format!("shape {:?} with {} texts", input.shape, texts.len());
                return Err(Error::expected(what(), "a text for each element", got));
            }
        }
    }
    Ok(())
}

/// The tensors that are there at the start: the inputs that are read, which are taken out of the request
/// with all others.
fn inputs(
    served: &Served,
    chain: &Chain,
    request: &mut Request,
    readers: &[usize],
) -> Vec<Option<Value>> {
    let mut tensors = vec![None; chain.num_tensors];
    for input in std::mem::take(&mut request.inputs) {
        let mut stated = served.config.input.iter();
        let at = stated.position(|i| i.name == input.name);
        if let Some(at) = at.filter(|&at| readers[at] > 0) {
            tensors[at] = Some(Value {
                data_type: input.data_type,
                shape: input.shape,
                data: input.data,
            });
        }
    }
    tensors
}

/// The request of a step for the tensors that it reads, all of which are there, without parameters: it
/// wants what has readers, or all where nothing has.
fn step_request(
    link: &Link,
    (tensors, readers): (&[Option<Value>], &[usize]),
    request: &Request,
) -> Request {
    let input = |port: &Port| {
        let value = tensors[port.tensor].as_ref()?;
        Some(Input {
            name: port.name.clone(),
            data_type: value.data_type,
            shape: value.shape(port.rank),
            data: value.data.clone(),
        })
    };
    let is_read = |port: &&Port| readers[port.tensor] > 0;
    let any = link.makes.iter().any(|port| is_read(&port));
    let makes = link.makes.iter().filter(|port| is_read(port) || !any);
    let wanted = makes.map(|port| Wanted {
        name: port.name.clone(),
        ..Wanted::default()
    });
    Request {
        id: request.id.clone(),
        params: Params::default(),
        inputs: link.reads.iter().filter_map(input).collect(),
        wanted: wanted.collect(),
        trace: request.trace,
        count: request.count,
        is_step: true,
        recipe: None,
    }
}

/// Keeps what a step answered and somebody reads.
fn keep((tensors, readers): (&mut [Option<Value>], &[usize]), link: &Link, answer: Answer) {
    for output in answer.outputs {
        let port = link.makes.iter().find(|port| port.name == output.name);
        if let Some(port) = port.filter(|port| readers[port.tensor] > 0) {
            tensors[port.tensor] = Some(Value {
                data_type: output.data_type,
                shape: output.shape,
                data: output.data.into(),
            });
        }
    }
}

/// The answer, of tensors that are all there.
fn outputs(
    served: &Served,
    chain: &Chain,
    request: &Request,
    tensors: &[Option<Value>],
) -> Result<Answer> {
    let stated = &served.config.output;
    let samples = usize::from(served.config.max_batch_size > 0);
    let mut outputs = Vec::new();
    for wanted in answer::wanted(served, request) {
        let at = stated.iter().position(|o| o.name == wanted.name);
        let value = at.and_then(|at| tensors[chain.outputs[at]].clone());
        let (Some(at), Some(value)) = (at, value) else {
            let message = format!("output '{}': no step made it", wanted.name);
            return Err(Error::Internal(message));
        };
        let output = Output {
            name: wanted.name.clone(),
            data_type: value.data_type,
            shape: value.shape(stated[at].dims.len() + samples),
            data: value.data.into(),
            wanted,
        };
        outputs.push(answer::placed(served, output)?);
    }
    Ok(Answer {
        id: request.id.clone(),
        outputs,
        explanation: None,
        passage: None,
    })
}

/// An error of a step, which is named.
fn of_step(link: &Link, error: Error) -> Error {
    error.map(|text| format!("{}: {text}", link.place))
}

impl Asked {
    fn of(served: &Served, params: &Params, came: Time) -> Result<Self> {
        let settings = &served.settings;
        let class = params.text("sla_class")?.unwrap_or(super::pending::DEFAULT);
        let own = settings.classes.iter().rfind(|c| c.name == class);
        let stated = params.number("priority")?.unwrap_or(0);
        let priority = settings.priority(stated, class);
        let sla = params.positive("sla_ms")?.map(Nanos::from_ms_f64);
        Ok(Self {
            params: params.clone(),
            came,
            sla: sla.or(own.and_then(|c| c.sla)).or(settings.sla),
            priority,
        })
    }

    /// The parameters of a request to a step: those that mean something to it, and of times what is
    /// left at `now`.
    ///
    /// # Errors
    /// A time to wait that is no number.
    fn params(&self, chain: &Chain, link: &Link, now: Time) -> Result<Params> {
        let step = &link.served;
        let mut params = self.params.clone();
        // Where some steps draw tokens as the request says, the others do as they always do.
        let is_drawn = chain.steps().any(Served::samples) && !step.samples();
        let is_foreign = |key: &str, value: &Param| match key {
            "sla_class" => match value {
                Param::Text(class) => step.check_class(Some(class)).is_err(),
                _ => false,
            },
            key if PLACE.contains(&key) => !link.is_of_sequences(),
            key => is_drawn && sampling::KEYS.contains(&key),
        };
        params.retain(|key, value| !is_foreign(key, value));
        let spent = now.since(self.came);
        if let Some(wait) = params.number("timeout")?.filter(|&us| us > 0) {
            // Those steps look at it whose configuration says how long requests may wait.
            let left = wait.saturating_sub(spent.0 / 1000).max(1);
            params.set("timeout".into(), Param::Uint(left));
        }
        if let Some(sla) = self.sla {
            // One that is missed already is as short as it can be.
            let left = sla.0.saturating_sub(spent.0).max(1) as f64 / 1e6;
            params.set("sla_ms".into(), Param::Double(left));
        }
        if self.priority > 0 {
            params.set("priority".into(), Param::Uint(self.priority.into()));
        }
        Ok(params)
    }
}

impl Running {
    /// Its answer; `pending` counts it.
    ///
    /// # Errors
    /// Why there is none. What runs of it ends.
    pub async fn answer(&mut self, request: &Request, pending: &mut Pending) -> Result<Answer> {
        let answer = self.gathered(request).await;
        let mut answer = answer.inspect_err(|e| self.cause = Some(e.clone()))?;
        self.cause = None;
        let now = self.served.now();
        self.passage.first_launch = self.passage.first_launch.min(now);
        self.passage.finish = self.passage.finish.max(self.passage.first_launch);
        let late = |sla: Nanos| now.since(self.asked.came) > sla;
        if self.asked.sla.is_some_and(late) {
            self.passage.outcome = Outcome::Violated;
        }
        let stats = &self.served.stats;
        stats.answered(pending.class(), &self.passage);
        stats.computed(&self.passage.stages);
        pending.end_at(now, None);
        self.explanations.sort();
        let told = self.explanations.iter();
        let told = told.map(|(at, why)| format!("{}: {why}", self.chain.links[*at].place));
        let told: Vec<String> = told.collect();
        answer.explanation = (!told.is_empty()).then(|| told.join("\n"));
        answer.passage = Some(self.passage.clone());
        Ok(answer)
    }

    async fn gathered(&mut self, request: &Request) -> Result<Answer> {
        while let Some((at, answer)) = self.running.next().await {
            self.stages[at] = Stage::Ended;
            let chain = self.chain.clone();
            let link = &chain.links[at];
            let mut answer = answer.map_err(|e| of_step(link, e))?;
            if let Some(passage) = answer.passage.take() {
                self.passed(&link.served, &passage);
            }
            let why = answer.explanation.take();
            self.explanations.extend(why.map(|why| (at, why)));
            keep((&mut self.tensors, &self.unread), link, answer);
            self.call_ready(request)?;
        }
        outputs(&self.served, &self.chain, request, &self.tensors)
    }

    /// Calls all steps for which all is there.
    fn call_ready(&mut self, request: &Request) -> Result<()> {
        let chain = self.chain.clone();
        for (at, link) in chain.links.iter().enumerate() {
            let is_there = |tensor: usize| self.tensors[tensor].is_some();
            let is_ready = link.reads.iter().all(|port| is_there(port.tensor));
            if self.stages[at] == Stage::Waits && is_ready {
                let called = self.call(at, link, request).map_err(|e| of_step(link, e));
                called.inspect_err(|e| self.cause = Some(e.clone()))?;
            }
        }
        let between = self.tensors[self.served.config.input.len()..].iter();
        let between = between.flatten().map(|value| value.data.len());
        let in_engine = self.stages.iter().map(|stage| match stage {
            Stage::Runs(bytes) => *bytes,
            Stage::Idle | Stage::Waits | Stage::Ended => 0,
        });
        self.tab.settle(between.chain(in_engine).sum());
        Ok(())
    }

    fn call(&mut self, at: usize, link: &Link, request: &Request) -> Result<()> {
        let params = self.asked.params(&self.chain, link, self.served.now())?;
        let own = Request {
            params,
            ..step_request(link, (&self.tensors, &self.unread), request)
        };
        for input in &own.inputs {
            let what = format_args!("input '{}'", input.name);
            self.tab.check_tensor(what, input.data.len())?;
        }
        let bytes = own.inputs.iter().map(engine_bytes).sum();
        // Those that nobody else reads go.
        for port in &link.reads {
            self.unread[port.tensor] -= 1;
            if self.unread[port.tensor] == 0 {
                self.tensors[port.tensor] = None;
            }
        }
        let running = run::start(&link.served, own)?;
        self.stages[at] = Stage::Runs(bytes);
        let ends = async move { (at, running.finish().await) };
        self.running.push(Box::pin(ends));
        Ok(())
    }

    /// The way of a step through its engine is a part of that of the whole.
    fn passed(&mut self, step: &Served, own: &Passage) {
        let (here, there) = (self.served.now(), step.now());
        let at = |time: Time| Time(here.0.saturating_sub(there.since(time).0));
        let all = &mut self.passage;
        all.first_launch = all.first_launch.min(at(own.first_launch));
        all.finish = all.finish.max(at(own.finish));
        if own.outcome == Outcome::Violated {
            all.outcome = own.outcome;
        }
        all.requests += own.requests;
        let both = [all.launches.as_ref(), own.launches.as_ref()];
        all.launches = run::launches(both.into_iter());
        let stages = [
            (&mut all.stages.queue, own.stages.queue),
            (&mut all.stages.input, own.stages.input),
            (&mut all.stages.infer, own.stages.infer),
            (&mut all.stages.output, own.stages.output),
        ];
        for (sum, own) in stages {
            *sum = Nanos(sum.0.saturating_add(own.0));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(cause) = self.cause.take() else {
            return;
        };
        // What runs is dropped, of which its engine knows.
        for (link, stage) in self.chain.links.iter().zip(&self.stages) {
            match stage {
                Stage::Waits => refused(&link.served, &self.asked.params, &cause),
                Stage::Ended => lost(&link.served, &self.asked.params, &cause),
                // Steps over sequences are never idle.
                Stage::Runs(_) | Stage::Idle => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_dimension_of_1_comes_and_goes_as_it_is_wanted() {
        let shape = |shape: &[usize], rank| {
            let value = Value {
                data_type: DataType::Fp32,
                shape: shape.to_vec(),
                data: Bytes::new(),
            };
            value.shape(rank)
        };
        assert_eq!(shape(&[4], 2), [4, 1]);
        assert_eq!(shape(&[4, 1], 1), [4]);
        assert_eq!(shape(&[4, 1], 2), [4, 1]);
        assert_eq!(
            shape(&[4, 2], 1),
            [4, 2],
            "it is wrong, and told by the step"
        );
    }
}
