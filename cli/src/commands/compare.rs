//! `lazybatch compare`.

pub fn run(_: &crate::args::CompareArgs) -> anyhow::Result<()> { Ok(()) }
pub fn report(_: &lazybatch_workloads::results::Results, _: &[super::PolicyRun], _: &crate::args::OutputArgs, _: &[(String,String)], _: Vec<()>) -> anyhow::Result<()> { Ok(()) }
