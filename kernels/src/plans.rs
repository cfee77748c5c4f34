//! Prepared executions, and what a launch must be to run as one of them.

use lazybatch_graph::Program;
use lazybatch_sla::{Launch, ModelId, RequestId, Slot};
use rustc_hash::FxHashMap;

use crate::device::Plan;

/// One segment of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

impl PlanInfo {
    fn of(launch: &Launch) -> Self {
        Self {
            model: launch.model,
            block: launch.block,
            first: launch.first_node,
            end: launch.end_node,
        }
    }
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

/// All plans of a device whose plans do not depend on the size of launches. Those of a model go with it:
/// no more are kept than models that were loaded together ever had.
#[derive(Debug, Default)]
pub struct Plans {
    /// By number; those of free numbers are what they were last.
    all: Vec<PlanInfo>,
    numbers: FxHashMap<PlanInfo, u32>,
    free: Vec<u32>,
}

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
        let (all, free) = (&mut self.all, &mut self.free);
        let number = self.numbers.entry(info).or_insert_with(|| {
            if let Some(number) = free.pop() {
                all[number as usize] = info;
                return number;
            }
            all.push(info);
            all.len() as u32 - 1
        });
        Ok(Plan(*number))
    }

    /// Forgets those of a model that goes.
    pub fn forget(&mut self, model: ModelId) {
        let free = &mut self.free;
        self.numbers.retain(|info, number| {
            let stays = info.model != model;
            if !stays {
                free.push(*number);
            }
            stays
        });
    }

    /// Whether `launch` runs the segment of `plan`.
    pub fn is_of(&self, plan: Plan, launch: &Launch) -> bool {
        self.all.get(plan.0 as usize) == Some(&PlanInfo::of(launch))
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
        let info = self.all.get(plan.0 as usize).ok_or("no such plan")?;
        if *info != PlanInfo::of(launch) {
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

#[cfg(test)]
mod tests {
    use lazybatch_graph::{DType, ProgramBuilder, Repeat};

    use super::*;

    #[test]
    fn plans_of_a_model_go_with_it() {
        let mut b = ProgramBuilder::new("same");
        let x = b.input("x", DType::F32, &[1]);
        let y = b.output("y", DType::F32, &[1]);
        b.begin_block("all", Repeat::Once);
        let v = b.read_input("read", x);
        b.emit("emit", y, v);
        let program = b.finish().unwrap();
        let info = |model, (first, end)| PlanInfo {
            model: ModelId(model),
            block: 0,
            first,
            end,
        };
        let mut plans = Plans::default();
        let made = |plans: &mut Plans, model, segment| {
            plans.prepare(Some(&program), info(model, segment)).unwrap()
        };
        let kept = made(&mut plans, 0, (0, 2));
        for round in 0..100 {
            // Segments are cut in other places each time that one comes under an id.
            let cuts: &[_] = if round % 2 == 0 {
                &[(0, 1), (1, 2)]
            } else {
                &[(0, 2)]
            };
            let own: Vec<Plan> = cuts.iter().map(|&c| made(&mut plans, 1, c)).collect();
            let again: Vec<Plan> = cuts.iter().map(|&c| made(&mut plans, 1, c)).collect();
            assert_eq!(own, again, "a segment has one plan");
            assert!(own.iter().all(|&plan| plan != kept));
            for (plan, &cut) in own.iter().zip(cuts) {
                assert_eq!(plans.all[plan.0 as usize], info(1, cut));
            }
            plans.forget(ModelId(1));
        }
        assert_eq!(plans.all.len(), 3);
        assert_eq!(made(&mut plans, 0, (0, 2)), kept);
    }
}
