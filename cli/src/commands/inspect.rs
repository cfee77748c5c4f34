//! stub
pub fn run(_: &crate::args::InspectArgs) -> anyhow::Result<()> { Ok(()) }
