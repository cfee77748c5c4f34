//! stub
pub fn run(_: &crate::args::RunArgs) -> anyhow::Result<()> { Ok(()) }
