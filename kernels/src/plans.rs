//! Prepared executions, and what a launch must be to run as one of them.

use lazybatch_graph::Program;
use lazybatch_sla::{Launch, ModelId, RequestId, Slot};

use crate::device::Plan;

/// One segment of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanInfo {
    /// The model.
    pub model: ModelId,
    /// Block of its program.
    pub block: u32,
    /// First node, as a position in the block.
    pub first: u32,
    /// One behind the last node.
    pub end: u32,
}

/// What a launch is compared with: an open request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The request.
    pub request: RequestId,
    /// Its model.
    pub model: ModelId,
    /// Length of its input sequence.
    pub input_len: usize,
    /// Samples.
    pub samples: usize,
}

/// All plans of a device whose plans do not depend on the size of launches.
#[derive(Debug, Default)]
pub struct Plans(Vec<PlanInfo>);

impl Plans {
    /// The plan of a segment of `program`, that of `info.model`.
    ///
    /// # Errors
    /// That there is no such segment.
    pub fn prepare(&mut self, program: Option<&Program>, info: PlanInfo) -> Result<Plan, String> {
        let block = program.and_then(|p| p.blocks.get(info.block as usize));
        let nodes = block.map_or(0, |b| b.nodes.len());
        if info.first >= info.end || info.end as usize > nodes {
            return Err("no such segment of a loaded model".into());
        }
        let found = self.0.iter().position(|p| *p == info);
        let idx = found.unwrap_or_else(|| {
            self.0.push(info);
            self.0.len() - 1
        });
        Ok(Plan(idx as u32))
    }

    /// Checks that `launch` is one of `plan`, and its members against the requests that are open.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(
        &self,
        plan: Plan,
        launch: &Launch,
        program: Option<&Program>,
        open: impl Fn(Slot) -> Option<Opened>,
    ) -> Result<(), String> {
        let info = self.0.get(plan.0 as usize).ok_or("no such plan")?;
        let wanted = PlanInfo {
            model: launch.model,
            block: launch.block,
            first: launch.first_node,
            end: launch.end_node,
        };
        if *info != wanted {
            return Err(format!("the plan is for {info:?}"));
        }
        let block = program.and_then(|p| p.blocks.get(launch.block as usize));
        if block.is_none_or(|b| b.nodes.len() < launch.end_node as usize) {
            return Err("the plan is for a model that was unloaded".into());
        }
        for m in &launch.members {
            let open = open(m.slot).ok_or_else(|| format!("{} is not open", m.slot))?;
            if open.request != m.request || open.model != launch.model {
                return Err(format!(
                    "{} holds {}, not {}",
                    m.slot, open.request, m.request
                ));
            }
            if (open.input_len, open.samples) != (m.input_len as usize, m.samples as usize) {
                return Err(format!("{} was opened with another length", m.request));
            }
        }
        Ok(())
    }
}

/// Name of the nodes that a launch runs, for errors.
pub fn segment_name(program: Option<&Program>, launch: &Launch) -> String {
    let block = program.and_then(|p| p.blocks.get(launch.block as usize));
    let block = block.map_or("?", |b| &b.name);
    format!("{block}[{}..{}]", launch.first_node, launch.end_node)
}
